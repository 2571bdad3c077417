/* Averages a vector over the ranks of a job, in C.
 *
 * Two hosts, rank 0 on 10.0.0.1; also under torchrun, mpirun and srun:
 *   host1$ RANK=0 WORLD_SIZE=2 TARPON_RENDEZVOUS=10.0.0.1:29500 ./allreduce_c
 *   host2$ RANK=1 WORLD_SIZE=2 TARPON_RENDEZVOUS=10.0.0.1:29500 ./allreduce_c
 */
#include <stdio.h>

#include <tarpon/tarpon.h>

#define COUNT 1000000
#define TEN_SECONDS 10000000

static int fail(void) {
  fprintf(stderr, "allreduce: %s\n", tarpon_error_text());
  return 1;
}

int main(void) {
  static float gradients[COUNT];
  tarpon_communicator* job = NULL;
  tarpon_arguments call = {.size = sizeof call};

  if (tarpon_connect_from_environment(NULL, &job) != TARPON_OK) return fail();
  for (int i = 0; i < COUNT; ++i) gradients[i] = (float)tarpon_rank(job);
  call.input = gradients;
  call.output = gradients;
  call.count = COUNT;
  call.type = TARPON_FLOAT32;
  call.function = TARPON_AVG;
  call.deadline_us = TEN_SECONDS;
  if (tarpon_allreduce(job, &call, NULL) != TARPON_OK) return fail();
  printf("rank %u of %u: the average is %g\n", tarpon_rank(job), tarpon_world_size(job),
         (double)gradients[0]);

  /* Serves the other ranks until they have the result. */
  if (tarpon_close(job, TEN_SECONDS) != TARPON_OK) return fail();
  tarpon_communicator_free(job);
  return 0;
}
