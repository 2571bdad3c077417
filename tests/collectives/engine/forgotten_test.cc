// Ranks that remember the numbers of a tag differently: no call is paired with another one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <deque>

#include "tests/support/simulated_job.h"

namespace tarpon::testing_support::forgotten_test {
namespace {

constexpr std::uint16_t kRanks = 3;
constexpr std::uint64_t kCount = 100;

class ForgottenTagTest : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  using Call = std::array<std::shared_ptr<PendingCall>, kRanks>;

  std::shared_ptr<PendingCall> submit(Rank rank, std::uint32_t tag, Buffers<float>& buffers) {
    AllreduceArguments arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.tag = tag;
    arguments.deadline = 1s;
    return job_->submit(rank, arguments);
  }

  /// All ranks make `calls` calls at once, rank r a millisecond after rank r - 1.
  std::vector<Call> run(std::uint32_t tag, int calls) {
    const std::size_t first = buffers_.size();
    for (int i = 0; i < calls; ++i) buffers_.emplace_back(kRanks, kCount, false, buffers_.size());
    std::vector<Call> result(static_cast<std::size_t>(calls));
    // The forgetful ranks come first: their packets meet a peer that has not begun.
    for (const Rank rank : std::array<Rank, 3>{1, 2, 0}) {
      for (std::size_t i = 0; i < result.size(); ++i) {
        result[i][rank] = submit(rank, tag, buffers_[first + i]);
      }
      job_->run_for(1ms);
    }
    EXPECT_TRUE(job_->finish(3s));
    job_->run_for(1s);  // all is passed, and forgotten where there is no room for it
    return result;
  }

  std::deque<Buffers<float>> buffers_;
  std::optional<SimulatedJob> job_;
};

TEST_P(ForgottenTagTest, every_call_of_the_tag_ends_as_aborted_on_all_ranks) {
  const auto [before, at_once, forgetful] = GetParam();
  job_.emplace(SimulatedJobOptions{.ranks = kRanks,
                                   .remembered_tags = {65'536, 1, forgetful == 2 ? 1u : 65'536u}});
  for (int call = 0; call < before; ++call) run(7, 1);
  run(8, 1);
  run(9, 1);
  for (int round = 0; round < 4; ++round) {
    for (const Call& call : run(7, at_once)) {
      for (Rank rank = 0; rank < kRanks; ++rank) {
        const Report& report = call[rank]->report;
        EXPECT_EQ(report.status, Status::aborted) << "rank " << rank << " " << report.detail;
        EXPECT_EQ(report.abort_reason, AbortReason::tag_forgotten) << report.detail;
        EXPECT_LT(report.elapsed, 500ms);
        for (const Rank blamed : report.blamed) EXPECT_TRUE(blamed == 1 || blamed == 2);
      }
    }
  }
  for (const Call& call : run(10, 3)) {
    for (const auto& one : call) EXPECT_EQ(one->report.status, Status::complete);
  }
  if (forgetful == 2) return;  // rank 0 waits for rank 2 to come as far as it is
  for (Rank rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ((*job_)[rank].endpoint().memory().active_tags, 0u);
}

INSTANTIATE_TEST_SUITE_P(Numbers, ForgottenTagTest,
                         testing::Combine(testing::Values(1, 2, 20),  // calls before
                                          testing::Values(1, 2, 5),   // calls at once
                                          testing::Values(1, 2)));    // ranks that forgot

}  // namespace
}  // namespace tarpon::testing_support::forgotten_test
