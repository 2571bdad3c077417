// Averages a vector over the ranks of a job, in C++.
//
// Two hosts, rank 0 on 10.0.0.1; also under torchrun, mpirun and srun:
//   host1$ RANK=0 WORLD_SIZE=2 TARPON_RENDEZVOUS=10.0.0.1:29500 ./allreduce_cc
//   host2$ RANK=1 WORLD_SIZE=2 TARPON_RENDEZVOUS=10.0.0.1:29500 ./allreduce_cc
#include <cstdio>
#include <vector>

#include <tarpon/communicator.h>
#include <tarpon/report_text.h>

namespace {

using namespace std::chrono_literals;

int fail(const std::string& line) {
  std::fprintf(stderr, "allreduce: %s\n", line.c_str());
  return 1;
}

}  // namespace

int main() {
  const auto options = tarpon::CommunicatorOptions::from_environment();
  if (!options) return fail(options.error().message);
  const auto job = tarpon::Communicator::connect(*options);
  if (!job) return fail(job.error().message);
  const tarpon::Rank rank = (*job)->rank();

  std::vector<float> gradients(1'000'000, static_cast<float>(rank));
  const auto report = (*job)->allreduce({.input = gradients.data(),
                                         .output = gradients.data(),
                                         .count = gradients.size(),
                                         .function = tarpon::ReduceOp::avg});
  if (!report) return fail(report.error().message);
  if (report->status != tarpon::Status::complete) return fail(to_string(*report));
  std::printf("rank %u of %u: the average is %g\n", static_cast<unsigned>(rank),
              (*job)->world_size(), static_cast<double>(gradients[0]));

  const auto closed = (*job)->close(10s);  // serves the other ranks until they have the result
  return closed ? 0 : fail(closed.error().message);
}
