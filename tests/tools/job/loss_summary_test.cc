// Why bounded calls lack data: over the ranks, over the calls, and in one line.
#include "tools/job/loss_summary.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace tarpon::loss_summary_test {
namespace {

CallLoss call_of(double bound_us, LossCauses causes = {}, std::uint64_t late = 0,
                 std::uint64_t void_shards = 0) {
  return {.bound_us = bound_us,
          .causes = causes,
          .counted = causes.of_live_ranks(),
          .late = late,
          .void_shards = void_shards};
}

TEST(CallLoss, add__causes_of_the_rank_that_lost_most) {
  CallLoss call;
  call.add(call_of(1000, {.cut = 0.5, .late_ranks = 0.125}, 0b0100));
  call.add(call_of(3000, {.network = 0.25, .at_owner = 0.125, .void_shards = 0.5}, 0b0001, 0b0100));
  call.add(call_of(2000, {.cut = 0.0625}));
  EXPECT_EQ(call.bound_us, 3000);
  EXPECT_EQ(call.causes, (LossCauses{.network = 0.25, .at_owner = 0.125, .void_shards = 0.5}));
  EXPECT_EQ(call.counted, 0.875);
  EXPECT_EQ(call.late, 0b0101u);
  EXPECT_EQ(call.void_shards, 0b0100u);
}

TEST(LossText, lost__the_sum_of_the_parts) {
  CallLoss call;
  call.add(call_of(100, {.cut = 0.75, .void_shards = 0.125}, 0, 0b0001));
  call.add(call_of(100, {.cut = 0.25, .void_shards = 0.5}, 0, 0b0010));
  EXPECT_EQ(loss_text(std::vector{call}, 0.001),
            "bound 100 us, target 0.1 %, lost 87.5 %: 75 cut; void shards: 0 (1 call), 1 (1 call), "
            "12.5 %");
}

TEST(LossText, nothing_lost__the_bound_and_the_target) {
  const std::vector<CallLoss> calls{call_of(71'240), call_of(80'400), call_of(60'000)};
  EXPECT_EQ(loss_text(calls, 0.001),
            "bound 71.2 ms (median; largest 80.4 ms), target 0.1 %, nothing lost");
}

TEST(LossText, bound__once_where_all_calls_have_the_same) {
  EXPECT_EQ(loss_text(std::vector{call_of(850), call_of(850)}, std::nullopt),
            "bound 850 us, nothing lost");
  EXPECT_EQ(loss_text(std::vector{call_of(2e6)}, std::nullopt), "bound 2.0 s, nothing lost");
  EXPECT_EQ(loss_text({}, 0.02), "bound -, target 2 %, nothing lost");
}

TEST(LossText, lost__mean_over_the_calls_and_causes_that_are_not_zero) {
  const std::vector<CallLoss> calls{
      call_of(1000, {.cut = 0.001, .network = 0.0004, .at_owner = 0.0002}), call_of(1000)};
  EXPECT_EQ(loss_text(calls, 0.001),
            "bound 1.0 ms, target 0.1 %, lost 0.08 %: 0.05 cut, 0.02 network, 0.01 at owner");
  EXPECT_EQ(loss_text(std::vector{call_of(1000, {.network = 0.0123})}, std::nullopt),
            "bound 1.0 ms, lost 1.23 %: 1.23 network");
}

TEST(LossText, late_ranks_and_void_shards__which_and_in_how_many_calls) {
  const std::vector<CallLoss> calls{
      call_of(1000, {.late_ranks = 0.125, .void_shards = 0.25, .gone = 0.125}, 0b0100, 0b0100),
      call_of(1000, {.late_ranks = 0.25}, 0b0101), call_of(1000), call_of(1000)};
  EXPECT_EQ(loss_text(calls, 0.001),
            "bound 1.0 ms, target 0.1 %, lost 18.8 %; late ranks: 0 (1 call), 2 (2 calls), 12.5 %; "
            "void shards: 2 (1 call), 6.25 %; 15.6 % count against the target");
}

TEST(LossCauses, json__shares_by_name) {
  const LossCauses causes{.cut = 0.5, .network = 0.25, .late_ranks = 0.125};
  const nlohmann::json json = causes;
  EXPECT_EQ(json, nlohmann::json({{"cut", 0.5},
                                  {"network", 0.25},
                                  {"at_owner", 0.0},
                                  {"late_ranks", 0.125},
                                  {"void_shards", 0.0},
                                  {"gone", 0.0}}));
}

}  // namespace
}  // namespace tarpon::loss_summary_test
