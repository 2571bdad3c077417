// A grid of 1,024 ranks in virtual time: 64 hosts with 16 ranks each.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>

#include "tests/simulation/grid_sum.h"

namespace tarpon::grid_thousand_test {
namespace {

using namespace testing_support;

TEST(GridThousandTest, calls_of_64_hosts_with_16_ranks_each) {
  const auto seconds = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  const auto begun = std::chrono::steady_clock::now();
  SimulatedGrid grid({.hosts = 64, .places = 16, .seed = 10});
  const auto made = seconds(begun);
  const auto run = [&](const char* what, auto& sum) {
    const auto from = std::chrono::steady_clock::now();
    const bool done = grid.finish(10s);
    const GridTimes times = sum.times();
    std::printf("%s: ended after %.3f to %.3f ms of virtual time, simulated in %.1f s\n", what,
                std::chrono::duration<double, std::milli>(times.first).count(),
                std::chrono::duration<double, std::milli>(times.last).count(), seconds(from));
    return done;
  };
  {
    GridSum<std::int64_t> exact(grid, 16'387, 0);
    exact.submit_all();
    ASSERT_TRUE(run("exact, 16,387 int64", exact));
    exact.expect_complete();
  }
  {
    GridSum<double> bounded(grid, 16'387, 1, 1);
    bounded.submit_all_bounded(50ms);
    ASSERT_TRUE(run("bounded, 16,387 float64", bounded));
    bounded.expect_complete();
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%u ranks, %zu engines: set up in %.1f s, all in %.1f s, %.2f GiB\n", grid.size(),
              grid.engines(), made, seconds(begun),
              static_cast<double>(usage.ru_maxrss) / (1 << 20));
}

TEST(GridThousandTest, bounded_call_with_loss_of_64_hosts_with_16_ranks_each) {
  SimulatedGrid grid(
      {.hosts = 64,
       .places = 16,
       .mechanisms = {.repair = false, .scatter_repair = false, .rescale = Rescale::none},
       .faults = {.loss = 0.05},
       .seed = 11});
  GridSum<double> sum(grid, 16'387, 0);
  sum.submit_all_bounded(50ms);
  ASSERT_TRUE(grid.finish(10s));
  EXPECT_GT(sum.expect_what_reports_say(Rescale::none), 0.02);
}

}  // namespace
}  // namespace tarpon::grid_thousand_test
