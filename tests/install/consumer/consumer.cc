// What a program outside the repository does: two ranks, as threads, add four numbers over
// loopback.
//
//   consumer FILE    FILE is where rank 0 leaves its address
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"

namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kRanks = 2;

/// A line with the sums, or with what went wrong.
std::string run(tarpon::Rank rank, const std::string& address) {
  tarpon::CommunicatorOptions options;
  options.rendezvous.rank = rank;
  options.rendezvous.world_size = kRanks;
  options.rendezvous.address = "file://" + address;
  options.mtu = 65536;
  auto communicator = tarpon::Communicator::connect(options);
  if (!communicator) return communicator.error().message;

  std::vector<float> values(4, static_cast<float>(rank + 1));
  auto report =
      (*communicator)
          ->allreduce({.input = values.data(), .output = values.data(), .count = values.size()});
  if (!report) return report.error().message;
  if (report->status != tarpon::Status::complete) return report->detail;
  const auto closed = (*communicator)->close(10s);
  if (!closed) return closed.error().message;

  std::string line = "rank " + std::to_string(rank) + ":";
  for (const float value : values) line += ' ' + std::to_string(static_cast<int>(value));
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FILE\n", argv[0]);
    return 2;
  }
  std::vector<std::string> lines(kRanks);
  std::vector<std::thread> threads;
  for (tarpon::Rank rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { lines[rank] = run(rank, argv[1]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& line : lines) std::puts(line.c_str());
  return 0;
}
