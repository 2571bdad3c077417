// How many communicators one process holds: 8 ranks, each a process with the usual limit of 1024
// descriptors, connect 32 times. Prints what a communicator takes.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "tests/support/sanitized.h"
#include "tools/job/process_group.h"
#include "tools/system/process_usage.h"
#include "transport/clock.h"

namespace tarpon::many_communicators_test {
namespace {

constexpr std::uint32_t kRanks = 8;
constexpr std::uint32_t kCommunicators = testing_support::kSanitizer ? 8 : 32;
constexpr rlim_t kDescriptors = testing_support::kSanitizer ? 256 : 1024;

/// Says what went wrong, for the parent's output; the exit code of the rank.
int failed(Rank rank, std::uint32_t number, const std::string& why) {
  std::fprintf(stderr, "rank %u, communicator %u: %s\n", rank, number, why.c_str());
  return 1;
}

void print(Rank rank, std::uint32_t number, const ProcessHoldings& before, Duration longest) {
  const ProcessHoldings now = ProcessHoldings::read();
  std::printf(
      "rank %u: %2u communicators of %u ranks: %lld descriptors, %lld threads, %.1f MiB, connect "
      "at most %.1f ms\n",
      rank, number, kRanks, static_cast<long long>(now.descriptors - before.descriptors),
      static_cast<long long>(now.threads - before.threads),
      static_cast<double>(now.resident_bytes - before.resident_bytes) / (1 << 20),
      std::chrono::duration<double, std::milli>(longest).count());
  std::fflush(stdout);
}

/// The values of all ranks add up, on each communicator.
int reduce_on_each(Rank rank, const std::vector<std::unique_ptr<Communicator>>& communicators) {
  for (std::uint32_t number = 0; number < communicators.size(); ++number) {
    std::vector<float> values(10'000, static_cast<float>(rank + number));
    const auto report = communicators[number]->allreduce(
        {.input = values.data(), .output = values.data(), .count = values.size(), .deadline = 60s});
    if (!report) return failed(rank, number, report.error().message);
    if (report->status != Status::complete) return failed(rank, number, report->detail);
    const auto expected = static_cast<float>(kRanks * (kRanks - 1) / 2 + kRanks * number);
    if (std::count(values.begin(), values.end(), expected) != std::ssize(values)) {
      return failed(rank, number, "wrong sums");
    }
  }
  return 0;
}

int run_rank(Rank rank, const std::string& prefix) {
  const rlimit limit{kDescriptors, kDescriptors};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return failed(rank, 0, "no RLIMIT_NOFILE");
  const ProcessHoldings before = ProcessHoldings::read();
  std::vector<std::unique_ptr<Communicator>> communicators;
  Duration longest{};
  for (std::uint32_t number = 0; number < kCommunicators; ++number) {
    auto options =
        CommunicatorOptions::for_rank(rank, kRanks, "file://" + prefix + std::to_string(number));
    options.rendezvous.timeout = 60s;
    const Time start = monotonic_now();
    auto made = Communicator::connect(options);
    if (!made) return failed(rank, number, made.error().message);
    longest = std::max(longest, monotonic_now() - start);
    communicators.push_back(std::move(*made));
    if (number == 0 && rank <= 1) print(rank, 1, before, longest);
  }
  if (const int bad = reduce_on_each(rank, communicators); bad != 0) return bad;
  if (rank <= 1) print(rank, kCommunicators, before, longest);
  for (const auto& communicator : communicators) {
    if (auto closed = communicator->close(60s); !closed) {
      return failed(rank, 0, closed.error().message);
    }
  }
  return 0;
}

TEST(ManyCommunicatorsTest, communicators_of_a_process__keep_within_its_descriptors) {
  const std::string prefix = testing::TempDir() + "tarpon-many-" + std::to_string(::getpid()) + "-";
  const auto ended = run_process_group(kRanks, [&](Rank rank) { return run_rank(rank, prefix); });
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_TRUE(ended->ok()) << ended->summary();
}

}  // namespace
}  // namespace tarpon::many_communicators_test
