// What the report of a call says beside its result, for every status: how far it had come, what
// came of each rank and when that was last heard, what was fetched and missed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_job.h"

namespace tarpon::report_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing_support::Buffers;
using testing_support::SimulatedJob;

using Bytes = std::array<std::uint64_t, 2>;

constexpr std::uint64_t kCount = 1001;  // the last slot of each shard is short
constexpr std::size_t kWidth = sizeof(float);

AllreduceArguments exact(Buffers<float>& buffers, Rank rank, Duration deadline = 1s) {
  auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
  arguments.deadline = deadline;
  return arguments;
}

AllreduceArguments bounded(Buffers<float>& buffers, Rank rank) {
  auto arguments = exact(buffers, rank, 4s);
  arguments.mode = Mode::bounded;
  arguments.bound = 20ms;
  return arguments;
}

/// Bytes of the shard that `rank` owns in operation `number` of `ranks`.
std::uint64_t shard(Rank rank, std::uint32_t number, std::uint16_t ranks) {
  return ShardLayout{kCount, kWidth, ranks}.elements(shard_of(rank, number, ranks)).count * kWidth;
}

TEST(ReportTest, complete__all_that_was_expected_of_each_rank) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, kCount, false);
  for (std::uint32_t number = 0; number < 2; ++number) {
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < 3; ++rank) {
      auto arguments = number == 0 ? exact(buffers, rank) : bounded(buffers, rank);
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish());
    for (Rank rank = 0; rank < 3; ++rank) {
      const Report& report = calls[rank]->report;
      EXPECT_EQ(report.status, Status::complete);
      EXPECT_EQ(report.stage, CallStage::result);
      ASSERT_EQ(report.peers.size(), 3u);
      std::uint64_t sum = 0;
      for (Rank peer = 0; peer < 3; ++peer) {
        const PeerReport& of = report.peers[peer];
        const Bytes due{shard(rank, number, 3), shard(peer, number, 3)};
        EXPECT_EQ(of.bytes_expected, peer == rank ? Bytes{} : due);
        EXPECT_EQ(of.bytes_received, of.bytes_expected);
        EXPECT_EQ(of.contributors, 0b111u);
        EXPECT_EQ(of.last_heard.has_value(), peer != rank);
        sum += of.bytes_received[0] + of.bytes_received[1];
      }
      EXPECT_EQ(report.bytes_received, sum);
      EXPECT_TRUE(report.void_shards.empty());
      EXPECT_EQ(report.bytes_fetched, 0u);
      EXPECT_EQ(report.operations_missed, 0u);
    }
  }
}

TEST(ReportTest, alone__nothing_is_expected) {
  SimulatedJob job({.ranks = 1});
  Buffers<float> buffers(1, kCount, false);
  const auto call = job.submit(0, exact(buffers, 0));
  EXPECT_EQ(call->report.stage, CallStage::result);
  EXPECT_EQ(call->report.peers, std::vector<PeerReport>{[] {
              PeerReport alone;
              alone.contributors = 1;
              return alone;
            }()});
}

TEST(ReportTest, peer_late__who_sent_what_and_who_was_never_heard) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, kCount, false);
  const auto call = job.submit(0, exact(buffers, 0, 300ms));
  job.submit(1, exact(buffers, 1, 300ms));
  job.stop(2);
  ASSERT_TRUE(job.finish());
  const Report& report = call->report;
  EXPECT_EQ(report.status, Status::peer_late);
  EXPECT_EQ(report.stage, CallStage::scatter);
  EXPECT_GE(report.elapsed, 300ms);
  EXPECT_EQ(report.peers[1].bytes_received, (Bytes{shard(0, 0, 3), 0}));
  EXPECT_EQ(report.peers[2].bytes_expected, (Bytes{shard(0, 0, 3), shard(2, 0, 3)}));
  EXPECT_EQ(report.peers[2].bytes_received, Bytes{});
  EXPECT_TRUE(report.peers[1].last_heard);
  EXPECT_FALSE(report.peers[2].last_heard);
  EXPECT_THAT(report.peers, Each(Field(&PeerReport::contributors, 0u))) << "there is no result";
}

TEST(ReportTest, peer_dead__how_long_it_was_silent) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> first(3, kCount, false), second(3, kCount, false);
  for (Rank rank = 0; rank < 3; ++rank) job.submit(rank, exact(first, rank));
  ASSERT_TRUE(job.finish());
  job.kill(2);
  job.run_for(50ms);
  const auto call = job.submit(0, exact(second, 0));
  job.submit(1, exact(second, 1));
  job.run_for(50ms);
  job.tell_dead(2);
  ASSERT_TRUE(job.finish(1ms));
  EXPECT_EQ(call->report.status, Status::peer_dead);
  EXPECT_EQ(call->report.operation, 1u);
  EXPECT_EQ(call->report.stage, CallStage::scatter);
  EXPECT_EQ(call->report.peers[2].bytes_received, Bytes{});
  EXPECT_GE(call->report.peers[2].last_heard, 100ms);
  EXPECT_LT(call->report.peers[1].last_heard, 51ms);
}

TEST(ReportTest, partial__the_shard_of_an_absent_rank_is_void) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, kCount, false);
  const auto call = job.submit(0, bounded(buffers, 0));
  job.submit(1, bounded(buffers, 1));
  ASSERT_TRUE(job.finish());
  const Report& report = call->report;
  EXPECT_EQ(report.status, Status::partial);
  EXPECT_EQ(report.stage, CallStage::result);
  EXPECT_THAT(report.void_shards, ElementsAre(2));
  EXPECT_EQ(report.peers[0].contributors, 0b011u);
  EXPECT_EQ(report.peers[1].contributors, 0b011u);
  EXPECT_EQ(report.peers[2].contributors, 0u);
  EXPECT_EQ(report.peers[1].bytes_received, report.peers[1].bytes_expected);
  EXPECT_EQ(report.peers[2].bytes_received, Bytes{});
  EXPECT_EQ(report.bytes_fetched, 0u);
}

TEST(ReportTest, late_self__what_it_fetched_and_which_shards_are_void) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, kCount, false);
  for (Rank rank = 0; rank < 3; ++rank) job.submit(rank, bounded(buffers, rank));
  ASSERT_TRUE(job.finish());
  const auto late = job.submit(3, bounded(buffers, 3));
  ASSERT_TRUE(job.finish());
  const Report& report = late->report;
  EXPECT_EQ(report.status, Status::late_self);
  EXPECT_EQ(report.bytes_fetched, shard(0, 0, 4) + shard(1, 0, 4) + shard(2, 0, 4));
  EXPECT_THAT(report.void_shards, ElementsAre(3));
  for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(report.peers[rank].contributors, 0b0111u);
  EXPECT_EQ(report.peers[3].contributors, 0u);
}

TEST(ReportTest, complete__a_call_of_no_elements_also_at_a_rank_that_comes_late) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 0, false);
  for (int call = 0; call < 3; ++call) {  // packets of the third one say that the second is closed
    for (Rank rank = 0; rank < (call == 0 ? 4 : 3); ++rank)
      job.submit(rank, bounded(buffers, rank));
    ASSERT_TRUE(job.finish());
  }
  const auto late = job.submit(3, bounded(buffers, 3));
  ASSERT_TRUE(job.finish());
  const Report& report = late->report;
  EXPECT_EQ(report.status, Status::complete);
  EXPECT_EQ(report.lost_fraction, 0);
  EXPECT_EQ(report.lost_stage1, 0);
  EXPECT_EQ(report.lost_stage2, 0);
  EXPECT_EQ(report.causes, LossCauses());
  EXPECT_THAT(report.late_ranks, IsEmpty());
  EXPECT_THAT(report.missing, IsEmpty());
  EXPECT_THAT(report.runs, IsEmpty());
}

TEST(ReportTest, queued__calls_that_never_begin_have_their_numbers) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, kCount, false);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int call = 0; call < 10; ++call) {  // two beyond the window
    calls.push_back(job.submit(0, exact(buffers, 0, call == 8 ? 100ms : 1s)));
  }
  job.run_for(200ms);
  EXPECT_EQ(calls[8]->report.status, Status::peer_late);
  EXPECT_GE(calls[8]->report.elapsed, 100ms);
  job[0].abort_for_good(0, "enough", job.now());
  ASSERT_TRUE(job.finish(1ms));
  calls.push_back(job.submit(0, exact(buffers, 0)));
  calls.push_back(job.submit(0, exact(buffers, 0)));
  for (std::uint32_t i = 0; i < calls.size(); ++i) {
    const Report& report = calls[i]->report;
    EXPECT_EQ(report.operation, i);
    EXPECT_EQ(report.stage, i < 8 ? CallStage::scatter : CallStage::queued) << i;
    ASSERT_EQ(report.peers.size(), 2u);
    EXPECT_EQ(report.peers[1].bytes_expected[0], i < 8 ? shard(0, i, 2) : 0);
    EXPECT_EQ(report.operations_missed, 0u);
  }
  EXPECT_GE(calls[9]->report.elapsed, 200ms);
}

TEST(ReportTest, evicted__the_operations_missed_up_to_where_the_others_are) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, kCount, false);
  for (Rank rank = 0; rank < 3; ++rank) job.submit(rank, bounded(buffers, rank));
  ASSERT_TRUE(job.finish());
  job.stop(2);
  for (int call = 0; call < 4; ++call) {  // 1 to 4
    for (Rank rank = 0; rank < 2; ++rank) job.submit(rank, bounded(buffers, rank));
    ASSERT_TRUE(job.finish());
  }
  job.resume(2);
  job[2].progress(job.now());  // hears of them
  job[2].learn(testing_support::evicted(2), job.now());
  for (std::uint32_t number = 1; number < 7; ++number) {
    const auto call = job.submit(2, bounded(buffers, 2));
    ASSERT_TRUE(call->done);
    EXPECT_EQ(call->report.status, Status::evicted);
    EXPECT_EQ(call->report.operation, number);
    EXPECT_EQ(call->report.first_missed, 1u);
    EXPECT_EQ(call->report.operations_missed, std::max(number, 3u)) << "4 was the newest it heard";
  }
}

TEST(ReportTest, evicted__in_flight_and_queued_calls_count_on) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, kCount, false);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int call = 0; call < 10; ++call) calls.push_back(job.submit(0, exact(buffers, 0)));
  job.run_for(1ms);
  job[0].learn(testing_support::evicted(0), job.now());
  ASSERT_TRUE(job.finish(1ms));
  calls.push_back(job.submit(0, exact(buffers, 0)));
  for (std::uint32_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i]->report.status, Status::evicted);
    EXPECT_EQ(calls[i]->report.operation, i);
    EXPECT_EQ(calls[i]->report.first_missed, 0u);
    EXPECT_EQ(calls[i]->report.operations_missed, i + 1);
  }
}

}  // namespace
}  // namespace tarpon::report_test
