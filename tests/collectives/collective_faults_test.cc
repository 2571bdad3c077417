// The fault table of the collectives beside AllReduce: a rank that is late, differs or refuses, in
// each of them. Every rank that needs that rank names it, and the next call is right. Ranks that
// are killed or stopped: tests/tools/collective/cli_collective_faults_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "collectives/collective.h"
#include "tests/support/live_job.h"

namespace tarpon::collective_faults_test {
namespace {

using testing::HasSubstr;
using testing_support::connect;
using testing_support::expect_complete;
using testing_support::on_all;
using testing_support::Ranks;

constexpr std::uint32_t kRanks = 4;
constexpr Rank kGuilty = 2;
constexpr std::uint64_t kPart = 5000;
constexpr auto kDeadline = std::chrono::seconds(20);

class CollectiveFaults : public testing::TestWithParam<Collective> {
 protected:
  void SetUp() override {
    ranks_ = connect(kRanks, Datapath::automatic);
    ASSERT_EQ(ranks_.size(), kRanks);
  }

  /// A call on buffers that are large enough for each collective. `change`: what the guilty rank
  /// changes in its arguments.
  template <typename Change>
  Result<Report> call(Rank rank, Change change) {
    std::vector<float> in(kRanks * kPart, 1.0f), out(kRanks * kPart);
    CollectiveArguments arguments{.collective = GetParam(),
                                  .input = in.data(),
                                  .output = out.data(),
                                  .count = kPart,
                                  .deadline = kDeadline};
    if (rank == kGuilty) change(arguments);
    return ranks_[rank]->collective(arguments);
  }

  /// Whether `rank` may have all that it needs: in a broadcast or scatter that is data of rank 0.
  static bool may_be_complete(Rank rank) {
    const bool of_root = GetParam() == Collective::broadcast || GetParam() == Collective::scatter;
    return of_root && rank != 0 && rank != kGuilty;
  }

  void expect_that_the_next_call_is_right() {
    on_all(kRanks, [&](Rank rank) { expect_complete(call(rank, [](CollectiveArguments&) {})); });
  }

  Ranks ranks_;
};

TEST_P(CollectiveFaults, late__is_waited_for) {
  on_all(kRanks, [&](Rank rank) {
    expect_complete(call(rank, [](CollectiveArguments&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }));
  });
  expect_that_the_next_call_is_right();
}

TEST_P(CollectiveFaults, mismatched__is_named) {
  const Collective other =
      GetParam() == Collective::gather ? Collective::all_gather : Collective::gather;
  on_all(kRanks, [&](Rank rank) {
    const auto report =
        call(rank, [&](CollectiveArguments& arguments) { arguments.collective = other; });
    ASSERT_TRUE(report) << report.error().message;
    if (may_be_complete(rank) && report->status == Status::complete) return;
    EXPECT_EQ(report->blamed, std::vector<Rank>{kGuilty}) << report->detail;
    const std::string named = rank == kGuilty ? "this rank differs" : "rank 2";
    EXPECT_THAT(report->detail, HasSubstr(named));
    EXPECT_EQ(report->status, Status::mismatch) << report->detail;
    EXPECT_LT(report->elapsed, kDeadline / 2);
  });
  expect_that_the_next_call_is_right();
}

TEST_P(CollectiveFaults, refusing__is_named) {
  on_all(kRanks, [&](Rank rank) {
    const auto report =
        call(rank, [](CollectiveArguments& arguments) { arguments.refusal = "no room here"; });
    ASSERT_TRUE(report) << report.error().message;
    if (may_be_complete(rank) && report->status == Status::complete) return;
    EXPECT_EQ(report->status, Status::aborted) << report->detail;
    EXPECT_EQ(report->abort_reason, AbortReason::exception);
    EXPECT_EQ(report->blamed, std::vector<Rank>{kGuilty}) << report->detail;
    EXPECT_THAT(report->detail, HasSubstr(rank == kGuilty ? "no room here" : "rank 2"));
    EXPECT_LT(report->elapsed, kDeadline / 2);
  });
  expect_that_the_next_call_is_right();
}

INSTANTIATE_TEST_SUITE_P(Collectives, CollectiveFaults,
                         testing::Values(Collective::reduce_scatter, Collective::all_gather,
                                         Collective::broadcast, Collective::reduce,
                                         Collective::gather, Collective::scatter,
                                         Collective::all_to_all),
                         [](const auto& collective) {
                           return std::string(name(collective.param));
                         });

}  // namespace
}  // namespace tarpon::collective_faults_test
