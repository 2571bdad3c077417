/* Uses every function of tarpon.h from C: three local ranks, of which one goes without a word.
 *
 *   every_function FILE     FILE: where rank 0 may leave its address
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/tarpon.h"

#define RANKS 3
#define COUNT 5000
#define SECONDS(n) ((int64_t)(n)*1000000)

#define REQUIRE(condition)                                                      \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "rank %u, line %d: %s: %s\n", rank, __LINE__, #condition, \
              tarpon_error_text());                                             \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

static tarpon_arguments sum_of(float* data) {
  tarpon_arguments call = {.size = sizeof call};
  call.input = data;
  call.output = data;
  call.count = COUNT;
  call.type = TARPON_FLOAT32;
  call.function = TARPON_SUM;
  call.deadline_us = SECONDS(20);
  return call;
}

static void fill(float* data, uint32_t rank) {
  for (int i = 0; i < COUNT; ++i) data[i] = (float)(rank + 1);
}

/* Rank 0 sends a value to rank 1. */
static void check_message(tarpon_communicator* job, uint32_t rank) {
  int32_t value = rank == 0 ? 5 : 0;
  uint32_t peer = 9;
  tarpon_call* call = NULL;
  tarpon_message message = {.size = sizeof message};
  message.data = &value;
  message.bytes = sizeof value;
  message.peer = rank == 0 ? 1 : 0;
  message.deadline_us = SECONDS(20);
  if (rank > 1) return;
  if (rank == 1) REQUIRE(tarpon_probe(job, 0, SECONDS(20), &peer) == TARPON_OK && peer == 0);
  REQUIRE((rank == 0 ? tarpon_send(job, &message, NULL) : tarpon_recv(job, &message, NULL)) ==
          TARPON_OK);
  REQUIRE((rank == 0 ? tarpon_send_start(job, &message, &call)
                     : tarpon_recv_start(job, &message, &call)) == TARPON_OK);
  REQUIRE(tarpon_wait(call, NULL) == TARPON_OK && value == 5);
  tarpon_call_free(call);
  REQUIRE(tarpon_group_start() == TARPON_OK);
  REQUIRE((rank == 0 ? tarpon_send(job, &message, NULL) : tarpon_recv(job, &message, NULL)) ==
          TARPON_OK);
  REQUIRE(tarpon_group_end() == TARPON_OK);
}

static void check_calls(tarpon_communicator* job, uint32_t rank, float expected) {
  static float data[COUNT];
  const tarpon_arguments arguments = sum_of(data);
  tarpon_report* report = NULL;
  tarpon_summary summary = {.size = sizeof summary};
  tarpon_loss loss = {.size = sizeof loss};
  tarpon_step_verdict verdict = {.size = sizeof verdict};
  tarpon_call* call = NULL;
  uint32_t behind = 1;
  int done = 0;

  fill(data, rank);
  REQUIRE(tarpon_allreduce(job, &arguments, &report) == TARPON_OK);
  REQUIRE(data[0] == expected && data[COUNT - 1] == expected);
  REQUIRE(tarpon_report_summary(report, &summary) == TARPON_OK);
  REQUIRE(strcmp(tarpon_status_name(summary.status), "complete") == 0);
  REQUIRE(strncmp(tarpon_report_text(report), "complete: operation 0 of tag 0", 30) == 0);
  REQUIRE(tarpon_report_loss(report, &loss) == TARPON_OK && loss.lost_fraction == 0);
  tarpon_report_free(report);

  fill(data, rank);
  REQUIRE(tarpon_allreduce_start(job, &arguments, &call) == TARPON_OK);
  while (!done) REQUIRE(tarpon_test(call, &done) == TARPON_OK);
  REQUIRE(tarpon_wait(call, NULL) == TARPON_OK);
  REQUIRE(data[COUNT / 2] == expected);
  tarpon_call_free(call);

  tarpon_collective_arguments broadcast = {.size = sizeof broadcast};
  broadcast.collective = TARPON_BROADCAST;
  broadcast.input = broadcast.output = data;
  broadcast.count = COUNT;
  broadcast.deadline_us = SECONDS(20);
  fill(data, rank);
  REQUIRE(tarpon_collective(job, &broadcast, NULL) == TARPON_OK);
  REQUIRE(data[0] == 1 && data[COUNT - 1] == 1);
  REQUIRE(tarpon_collective_start(job, &broadcast, &call) == TARPON_OK);
  REQUIRE(tarpon_wait(call, NULL) == TARPON_OK);
  tarpon_call_free(call);

  check_message(job, rank);

  REQUIRE(tarpon_behind(job, 0, &behind) == TARPON_OK && behind == 0);
  REQUIRE(tarpon_set_loss_target(job, 0.01) == TARPON_OK);
  REQUIRE(tarpon_set_loss_target(job, 1) == TARPON_ERROR_INVALID_ARGUMENT);
  REQUIRE(tarpon_barrier(job, SECONDS(20)) == TARPON_OK);
  REQUIRE(tarpon_agree(job, 0, &loss, SECONDS(20), &verdict) == TARPON_OK);
  REQUIRE(verdict.verdict == TARPON_STEP_APPLY);
}

static void as_rank(uint32_t rank, const char* meet) {
  tarpon_options options = {.size = sizeof options};
  tarpon_communicator* job = NULL;
  tarpon_communicator* fresh = NULL;
  tarpon_listener* listener = NULL;
  static float data[COUNT];
  const tarpon_arguments arguments = sum_of(data);
  tarpon_report* report = NULL;
  tarpon_summary summary = {.size = sizeof summary};
  int64_t state = rank == 1 ? 77 : 0;

  REQUIRE(strlen(tarpon_version()) > 0);
  REQUIRE(tarpon_listen(NULL, "lo", &listener) == TARPON_OK);
  REQUIRE(strncmp(tarpon_listener_address(listener), "tcp://127.", 10) == 0);
  tarpon_listener_free(listener);
  options.rank = rank;
  options.world_size = RANKS;
  options.rendezvous = meet;
  REQUIRE(tarpon_connect(&options, &job) == TARPON_OK);
  REQUIRE(tarpon_rank(job) == rank && tarpon_world_size(job) == RANKS);
  REQUIRE(strcmp(tarpon_interface_name(job), "lo") == 0);
  REQUIRE(strcmp(tarpon_integrity_name(job), "udp") == 0 && strlen(tarpon_exposed(job)) == 0);
  REQUIRE(strlen(tarpon_datapath_name(job)) > 0 && strlen(tarpon_shrunk_slots(job)) == 0);
  REQUIRE(strlen(tarpon_multicast(job)) == 0);
  REQUIRE(strlen(tarpon_hosts(job)) == 0 || strstr(tarpon_hosts(job), "share") != NULL);
  check_calls(job, rank, 6);
  REQUIRE(tarpon_resync(job, 1, &state, sizeof state, SECONDS(20)) == TARPON_OK && state == 77);

  /* A communicator of two of the ranks. */
  if (rank != 1) {
    const uint32_t two[] = {2, 0};
    tarpon_communicator* part = NULL;
    REQUIRE(tarpon_split(job, two, 2, 1, SECONDS(20), &part) == TARPON_OK);
    REQUIRE(tarpon_world_size(part) == 2 && tarpon_barrier(part, SECONDS(20)) == TARPON_OK);
    REQUIRE(tarpon_close(part, SECONDS(20)) == TARPON_OK);
    tarpon_communicator_free(part);
  }

  /* One rank is gone: exact calls end, and the others go on without it. */
  REQUIRE(tarpon_barrier(job, SECONDS(20)) == TARPON_OK);
  if (rank == 2) {
    sleep(1); /* the others have left the barrier by then */
    _exit(0);
  }
  REQUIRE(tarpon_allreduce(job, &arguments, &report) == TARPON_ERROR_NO_RESULT);
  REQUIRE(tarpon_report_summary(report, &summary) == TARPON_OK);
  REQUIRE(summary.status == TARPON_STATUS_PEER_DEAD && summary.blamed == 4);
  {
    uint32_t blamed[2] = {0, 0}, count = 0;
    REQUIRE(tarpon_report_ranks(report, TARPON_BLAMED, blamed, 2, &count) == TARPON_OK);
    REQUIRE(count == 1 && blamed[0] == 2 && tarpon_mask_bit(job, 2) == 2);
  }
  tarpon_report_free(report);
  REQUIRE(tarpon_shrink(job, SECONDS(20), &fresh) == TARPON_OK);
  tarpon_communicator_free(job);
  REQUIRE(tarpon_world_size(fresh) == 2 && strstr(tarpon_left_out(fresh), "rank 2") != NULL);
  check_calls(fresh, rank, 3);

  /* An abort ends the calls of a communicator, and a new one goes on. */
  if (rank == 0) {
    REQUIRE(tarpon_allreduce(fresh, &arguments, NULL) == TARPON_OK);
    REQUIRE(tarpon_abort(fresh, "for the test") == TARPON_OK);
  }
  while (tarpon_allreduce(fresh, &arguments, NULL) == TARPON_OK) continue;
  REQUIRE(strcmp(tarpon_error_name(TARPON_ERROR_NO_RESULT), "no result") == 0);
  REQUIRE(tarpon_rejoin(fresh, SECONDS(20), &job) == TARPON_OK);
  tarpon_communicator_free(fresh);
  check_calls(job, rank, 3);
  REQUIRE(tarpon_close(job, SECONDS(20)) == TARPON_OK);
  tarpon_communicator_free(job);

  setenv("RANK", rank == 0 ? "0" : "1", 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("TARPON_RENDEZVOUS", meet, 1);
  setenv("TARPON_INTERFACE", "lo", 1);
  {
    tarpon_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    REQUIRE(tarpon_check_environment(&options) == TARPON_OK);
  }
  REQUIRE(tarpon_connect_from_environment(NULL, &job) == TARPON_OK);
  check_calls(job, rank, 3);
  REQUIRE(tarpon_close(job, SECONDS(20)) == TARPON_OK);
  tarpon_communicator_free(job);
}

int main(int argc, char** argv) {
  char meet[4096];
  int failures = 0;
  if (argc != 2) {
    fprintf(stderr, "usage: %s FILE\n", argv[0]);
    return 2;
  }
  snprintf(meet, sizeof meet, "file://%s", argv[1]);
  for (uint32_t rank = 0; rank < RANKS; ++rank) {
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      as_rank(rank, meet);
      return 0;
    }
  }
  for (int rank = 0; rank < RANKS; ++rank) {
    int status = 0;
    if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failures;
  }
  remove(argv[1]);
  if (failures == 0) puts("every function works from C");
  return failures != 0;
}
