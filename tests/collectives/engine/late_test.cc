// Bounded calls that a rank comes to late, or is stopped in: it ends with what the others have, or
// says what differs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/support/simulated_job.h"

namespace tarpon::testing_support::late_test {
namespace {

using Ranks = std::vector<Rank>;

/// A bounded call of 4 ranks, whose results are compared.
class LateTest : public testing::Test {
 protected:
  static constexpr Duration kBound = 20ms;

  void begin(std::uint64_t count) {
    buffers_.emplace(4, count, true);
    job_.run_for(1us);  // the network's clock follows
  }

  std::shared_ptr<PendingCall> submit(Rank rank) {
    auto arguments = buffers_->arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = kBound;
    arguments.deadline = 4s;
    return calls_[rank] = job_.submit(rank, arguments);
  }

  void submit_all_but(Rank late) {
    for (Rank rank = 0; rank < 4; ++rank) {
      if (rank != late) submit(rank);
    }
  }

  void expect_late(Rank late) {
    EXPECT_EQ(calls_[late]->report.status, Status::late_self) << calls_[late]->report.detail;
    for (Rank rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(buffers_->outputs[rank], buffers_->outputs[late]) << "rank " << rank;
    }
  }

  /// One more call, with buffers of its own.
  std::shared_ptr<PendingCall> submit_next(Rank rank, Duration deadline = 4s) {
    next_.emplace_back(4, 400, true);
    return submit_to(next_.back(), rank, deadline, 0);
  }

  std::shared_ptr<PendingCall> submit_to(Buffers<float>& buffers, Rank rank, Duration deadline,
                                         std::uint32_t tag) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.tag = tag;
    arguments.mode = Mode::bounded;
    arguments.bound = bound_;
    arguments.deadline = deadline;
    return job_.submit(rank, arguments);
  }

  /// So that the ranks have heard one another on this tag.
  void run_one_call() {
    for (Rank rank = 0; rank < 4; ++rank) submit_next(rank);
    ASSERT_TRUE(job_.finish());
  }

  /// So many calls of rank 0 end before they can begin; the others make them later.
  void expire_behind_the_window(int many) {
    run_one_call();
    for (int call = 0; call < 8; ++call) submit_next(0);
    for (int call = 0; call < many; ++call) calls_[0] = submit_next(0, 100ms);
    job_.run_for(200ms);
    ASSERT_EQ(calls_[0]->report.status, Status::peer_late);
    for (const Rank rank : Ranks{1, 2, 3}) {
      for (int call = 0; call < 8; ++call) submit_next(rank);
    }
    job_.stop(0);
    job_.run_for(200ms);
    job_.resume(0);
    ASSERT_TRUE(job_.finish());
    job_.run_for(1ms);
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (const Rank rank : Ranks{1, 2, 3}) {
      for (int call = 0; call < many; ++call) calls.push_back(submit_next(rank));
    }
    ASSERT_TRUE(job_.finish());
    for (const auto& call : calls) {
      EXPECT_EQ(call->report.status, Status::partial) << "call " << call->report.operation;
      EXPECT_THAT(call->report.late_ranks, testing::ElementsAre(0));
      EXPECT_LT(call->report.elapsed, 2 * kBound);
    }
  }

  Duration bound_ = kBound;  // of submit_to()
  SimulatedJob job_{{.ranks = 4}};
  std::deque<Buffers<float>> next_;
  std::optional<Buffers<float>> buffers_;
  std::array<std::shared_ptr<PendingCall>, 4> calls_;
};

/// A bounded call of 2 ranks, each test with networks and times of its own.
class PairCall {
 public:
  PairCall(const SimulatedJobOptions& options, std::uint64_t count, bool in_place, Duration bound)
      : job(options), buffers(2, count, in_place), bound_(bound) {
    job.run_for(1us);  // the network's clock follows
  }

  void submit(Rank rank) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = bound_;
    arguments.deadline = 4s;
    calls[rank] = job.submit(rank, arguments);
  }

  SimulatedJob job;
  Buffers<float> buffers;
  std::array<std::shared_ptr<PendingCall>, 2> calls;

 private:
  const Duration bound_;
};

TEST_F(LateTest, begun_late__everything_of_the_first_call_waits_already) {
  begin(4000);  // within the initial credit
  submit_all_but(1);
  ASSERT_TRUE(job_.finish());
  submit(1);
  ASSERT_TRUE(job_.finish());
  expect_late(1);
}

TEST_F(LateTest, begun_late__the_only_shard_is_that_of_the_late_rank) {
  begin(16);
  submit_all_but(0);
  ASSERT_TRUE(job_.finish());
  submit(0);
  ASSERT_TRUE(job_.finish());
  expect_late(0);
}

TEST_F(LateTest, begun_late__and_so_the_next_ones) {
  for (int call = 0; call < 3; ++call) {
    begin(4000);
    submit_all_but(1);
    ASSERT_TRUE(job_.finish());
    submit(1);
    ASSERT_TRUE(job_.finish());
    expect_late(1);
  }
}

TEST_F(LateTest, stopped__before_it_begins) {
  begin(4000);
  job_.stop(1);
  submit_all_but(1);
  job_.run_for(3 * kBound);
  job_.resume(1);
  submit(1);
  ASSERT_TRUE(job_.finish());
  expect_late(1);
}

// What rank 0 may not send yet, since rank 1 grants nothing any more, cannot be had afterwards.
TEST(LateRetentionTest, stopped__without_retention_the_other_ends_by_its_bound) {
  constexpr Duration kBound = 20ms;
  Mechanisms mechanisms;
  mechanisms.retention = false;
  PairCall call({.ranks = 2, .mechanisms = mechanisms}, 60'000, false, kBound);
  for (const Rank rank : Ranks{0, 1}) call.submit(rank);
  call.job.run_for(50us);
  call.job.stop(1);
  call.job.run_for(200ms);
  const PendingCall& first = *call.calls[0];
  ASSERT_TRUE(first.done);
  EXPECT_EQ(first.report.status, Status::partial);
  EXPECT_LE(first.report.elapsed, 2 * kBound + 1ms);
}

TEST_F(LateTest, stopped__between_the_stages) {
  begin(4000);
  for (Rank rank = 0; rank < 4; ++rank) submit(rank);
  job_.run_for(25us);  // some of what they contribute has come
  job_.stop(1);
  job_.run_for(3 * kBound);
  job_.resume(1);
  ASSERT_TRUE(job_.finish());
  expect_late(1);
}

TEST_F(LateTest, stopped__between_the_stages_it_fetches_what_exceeds_the_credit) {
  begin(60'000);  // a shard is larger than the initial credit
  for (Rank rank = 0; rank < 4; ++rank) submit(rank);
  job_.run_for(24us);  // the others have what it contributes, and nothing of its shard
  job_.stop(1);
  job_.run_for(3 * kBound);
  job_.resume(1);
  ASSERT_TRUE(job_.finish());
  expect_late(1);
  EXPECT_THAT(calls_[1]->report.void_shards, testing::ElementsAre(1));
}

TEST_F(LateTest, stopped__before_it_hears_the_others) {
  begin(4000);
  for (Rank rank = 0; rank < 4; ++rank) submit(rank);
  ASSERT_TRUE(job_.finish());
  begin(4000);
  for (Rank rank = 0; rank < 4; ++rank) submit(rank);
  job_.run_for(1us);  // what it contributes is on its way
  job_.stop(1);
  job_.run_for(3 * kBound);
  job_.resume(1);
  ASSERT_TRUE(job_.finish());
  expect_late(1);
}

TEST_F(LateTest, stopped__for_less_than_the_bound) {
  begin(4000);
  for (Rank rank = 0; rank < 4; ++rank) submit(rank);
  job_.run_for(1us);
  job_.stop(1);
  job_.run_for(kBound / 2);
  job_.resume(1);
  ASSERT_TRUE(job_.finish());
  for (const auto& call : calls_) EXPECT_EQ(call->report.status, Status::complete);
}

/// A peer that was late as well still needs the shard that rank 0 was copying.
TEST(LateCopyTest, stopped__in_the_middle_of_a_copy_it_copies_the_rest) {
  constexpr Duration kBound = 20ms;
  PairCall call({.ranks = 2, .piece_bytes = 1 << 10}, 12'000, false, kBound);
  for (const Rank rank : Ranks{0, 1}) call.submit(rank);
  call.job.run_for(24us);  // rank 0 has some of what rank 1 contributes
  call.job.stop(1);
  ASSERT_TRUE(call.job.run_until([&] { return call.job.is_working(0); }, 2 * kBound));
  call.job.stop(0);
  call.job.run_for(2 * kBound);
  call.job.resume(0);
  ASSERT_TRUE(call.job.run_until([&] { return call.calls[0]->done.load(); }));
  call.job.resume(1);
  ASSERT_TRUE(call.job.finish());
  const Report& late = call.calls[1]->report;
  EXPECT_EQ(late.status, Status::late_self) << late.detail;
  EXPECT_EQ(late.bytes_fetched, sizeof(float) * 6000) << "of the shard of rank 0";
}

/// Its peers have repeated so many READYs that the answers to each of them would leave no room for
/// its questions.
TEST_F(LateTest, stopped__in_many_calls_it_asks_its_peers_in_each) {
  constexpr std::uint32_t kCalls = 60;
  begin(16);
  bound_ = 64ms;
  for (int call = 0; call < 3; ++call) run_one_call();  // its gathers are short
  std::deque<Buffers<float>> many;
  std::vector<std::shared_ptr<PendingCall>> late;
  for (std::uint32_t tag = 1; tag <= kCalls; ++tag) {
    many.emplace_back(4, 400, true);
    for (Rank rank = 0; rank < 4; ++rank) {
      auto call = submit_to(many.back(), rank, 4s, tag);
      if (rank == 0) late.push_back(call);
    }
  }
  job_.stop(0);
  job_.run_for(4 * bound_);
  job_.resume(0);
  ASSERT_TRUE(job_.finish());
  for (std::uint32_t call = 0; call < kCalls; ++call) {
    EXPECT_EQ(late[call]->report.status, Status::late_self) << call;
    for (const Rank rank : Ranks{1, 2, 3}) {
      EXPECT_EQ(many[call].outputs[rank], many[call].outputs[0]) << call;
    }
  }
}

/// A rank that goes on at any of these times has time to hear the answers to its questions. Where
/// nothing is known the gather takes a quarter of the bound.
TEST(LateTimesTest, stopped__until_about_the_time_when_questions_end) {
  constexpr Duration kBound = 20ms;
  for (const Duration end : {kBound + kBound / 4, kBound + kBound / 2}) {
    for (Duration stopped = end - 60us; stopped < end + 10us; stopped += 2us) {
      PairCall call({.ranks = 2}, 400, true, kBound);
      for (const Rank rank : Ranks{0, 1}) call.submit(rank);
      call.job.stop(1);
      call.job.run_for(stopped);
      call.job.resume(1);
      ASSERT_TRUE(call.job.finish());
      EXPECT_EQ(call.calls[1]->report.status, Status::late_self) << stopped / 1us;
      EXPECT_EQ(call.buffers.outputs[0], call.buffers.outputs[1]) << stopped / 1us;
    }
  }
}

/// Packets may overtake one another. A peer that has the question of the late rank, and not yet its
/// shard, answers that the call is open.
TEST(LateTimesTest, begun__just_before_its_peer_ends) {
  constexpr Duration kBound = 4ms;
  int late = 0, in_time = 0;
  for (Duration begins = kBound - 150us; begins < kBound; begins += 100ns) {
    const auto seed = static_cast<std::uint64_t>(begins / 1ns);
    PairCall call({.ranks = 2, .seed = seed}, 200, true, kBound);
    call.submit(0);  // each shard is one slot
    call.job.run_for(begins);
    call.submit(1);
    ASSERT_TRUE(call.job.finish());
    const Status status = call.calls[1]->report.status;
    late += status == Status::late_self ? 1 : 0;
    in_time += status == Status::partial ? 1 : 0;
    EXPECT_EQ(call.buffers.outputs[0], call.buffers.outputs[1]) << begins / 1us;
  }
  EXPECT_GT(late, 0);
  EXPECT_GT(in_time, 0);
}

/// All data of the peer has come. The rank waits only for the answer of the peer, which never
/// comes.
TEST(LateTimesTest, stopped__and_the_peer_that_it_asks_is_gone) {
  constexpr Duration kBound = 20ms;
  for (Duration known = 100us; known < 4ms; known += 100us) {
    PairCall call({.ranks = 2}, 400, true, kBound);
    for (const Rank rank : Ranks{0, 1}) call.submit(rank);
    call.job.stop(1);
    call.job.run_for(kBound - kBound / 5);
    call.job.kill(0);  // it has closed the scatter, and sent its shard
    call.job.resume(1);
    call.job.run_for(known);
    ASSERT_FALSE(call.calls[1]->done);
    call.job.tell_dead(0);
    ASSERT_TRUE(call.job.finish());
    EXPECT_LT(call.calls[1]->report.elapsed, kBound + known + 1ms) << known / 1us;
  }
}

TEST_F(LateTest, begun_a_little_late__costs_no_round_trip) {
  begin(4000);
  submit_all_but(1);
  job_.run_for(kBound / 5);
  const std::uint64_t before = job_[1].endpoint().counters().packets_out;
  submit(1);
  ASSERT_TRUE(job_.finish());
  for (const auto& one : calls_) EXPECT_EQ(one->report.status, Status::complete);
  // Its data, and one READY to each peer, which tells its terms.
  EXPECT_EQ(job_[1].endpoint().counters().packets_out - before,
            job_[1].endpoint().counters().data_out + 3);
}

TEST_F(LateTest, begun_late__by_more_calls_than_are_remembered) {
  constexpr int kCalls = 24;
  for (const Rank rank : Ranks{0, 2, 3, 1}) {
    for (int call = 0; call < kCalls; ++call) {
      const auto late = submit_next(rank);
      ASSERT_TRUE(rank == 0 || rank == 2 || job_.finish());
      if (rank != 1) continue;
      EXPECT_EQ(late->report.status, Status::late_self) << "call " << call;
    }
  }
  for (int call = 0; call < kCalls; ++call) {
    const auto& theirs = next_[static_cast<std::size_t>(call)].outputs[0];
    EXPECT_EQ(next_[static_cast<std::size_t>(call + 3 * kCalls)].outputs[1], theirs);
  }
}

TEST_F(LateTest, all_late__nobody_fetches_what_nobody_has) {
  run_one_call();
  const auto alone = submit_next(0, 100ms);
  ASSERT_TRUE(job_.finish());
  ASSERT_EQ(alone->report.status, Status::peer_late);
  submit_next(0);  // says that the one before is over
  job_.run_for(1ms);
  const Time began = job_.now();
  const std::uint64_t before = job_[1].endpoint().counters().packets_out;
  for (const Rank rank : Ranks{1, 2, 3}) calls_[rank] = submit_next(rank);
  for (const Rank rank : Ranks{1, 2, 3}) submit_next(rank);
  ASSERT_TRUE(job_.finish());
  for (const Rank rank : Ranks{1, 2, 3}) {
    EXPECT_EQ(calls_[rank]->report.status, Status::late_self)
        << rank << ": " << calls_[rank]->report.detail;
  }
  EXPECT_LT(job_.now() - began, 1s);
  EXPECT_LT(job_[1].endpoint().counters().packets_out - before, 100u);
}

TEST_F(LateTest, expired_before_it_began__costs_that_rank_alone) {
  expire_behind_the_window(1);
}

TEST_F(LateTest, expired_before_it_began__by_more_calls_than_the_others_keep_or_it_remembers) {
  expire_behind_the_window(20);
}

TEST_F(LateTest, begun_at_its_deadline__blames_whom_it_had_to_wait_for) {
  begin(400);
  for (const Rank rank : Ranks{1, 2, 3}) {
    auto arguments = buffers_->arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.deadline = 1s;
    for (int call = 0; call < 8; ++call) job_.submit(rank, arguments);  // exact: rank 0 lacks
    calls_[rank] = submit_next(rank, 1s + 1ns);                         // less than a packet takes
  }
  ASSERT_TRUE(job_.finish());
  for (const Rank rank : Ranks{1, 2, 3}) {
    const Report& report = calls_[rank]->report;
    EXPECT_EQ(report.status, Status::peer_late) << report.detail;
    EXPECT_EQ(report.operation, 8u);
    EXPECT_THAT(report.late_ranks, testing::ElementsAre(0)) << report.detail;
  }
}

TEST(LateWithoutRepair, a_late_rank_asks_for_what_it_lacks) {
  constexpr std::uint64_t kCount = 100'000;  // far beyond the initial credit
  Mechanisms mechanisms;
  mechanisms.repair = false;
  SimulatedJob job({.ranks = 4, .mechanisms = mechanisms});
  Buffers<float> buffers(4, kCount, true);
  std::shared_ptr<PendingCall> late;
  for (const Rank rank : Ranks{0, 2, 3, 1}) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = 50ms;
    arguments.deadline = 4s;
    if (rank == 1) {
      ASSERT_TRUE(job.finish());
    }
    late = job.submit(rank, arguments);
  }
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(late->report.status, Status::late_self) << late->report.detail;
  EXPECT_LT(late->report.elapsed, 1s);
  EXPECT_EQ(buffers.outputs[1], buffers.outputs[0]);
}

/// Runs three calls of 8 ranks. Rank 1 makes the second one when the others have made all three, so
/// that it knows from their packets that it is late. Returns element 0 of its own shard there.
float own_shard_of_late_rank(MissingFill missing, ReduceOp function, Rescale rescale,
                             bool in_place) {
  constexpr std::uint64_t kCount = 800;
  Mechanisms mechanisms;
  mechanisms.rescale = rescale;
  SimulatedJob job({.ranks = 8, .mechanisms = mechanisms});
  std::deque<Buffers<float>> buffers;
  for (int call = 0; call < 3; ++call) {
    Buffers<float>& own = buffers.emplace_back(8, kCount, in_place);
    for (auto* const all : {&own.inputs, &own.outputs}) {
      for (std::vector<float>& one : *all) one.assign(kCount, 1.0f);
    }
  }
  const auto submit = [&](std::size_t call, Rank rank) {
    auto arguments = buffers[call].arguments(rank, DataType::float32, function);
    arguments.mode = Mode::bounded;
    arguments.bound = 20ms;
    arguments.missing = missing;
    return job.submit(rank, arguments);
  };
  for (Rank rank = 0; rank < 8; ++rank) submit(0, rank);
  EXPECT_TRUE(job.finish());
  for (const std::size_t call : {std::size_t{1}, std::size_t{2}}) {
    for (const Rank rank : Ranks{0, 2, 3, 4, 5, 6, 7}) submit(call, rank);
    EXPECT_TRUE(job.finish());
  }
  const auto late = submit(1, 1);
  EXPECT_TRUE(job.finish());
  EXPECT_EQ(late->report.status, Status::late_self) << late->report.detail;
  const ShardLayout layout{kCount, sizeof(float), 8};
  return buffers[1].outputs[1][layout.elements(shard_of(1, 1, 8)).first];
}

TEST(LateFill, own_shard__is_filled_once_by_the_rule) {
  for (const bool in_place : {false, true}) {
    for (const Rescale rescale : {Rescale::count, Rescale::none}) {
      const auto fill = [&](MissingFill missing, ReduceOp function) {
        return own_shard_of_late_rank(missing, function, rescale, in_place);
      };
      EXPECT_EQ(fill(MissingFill::local, ReduceOp::sum), 8.0f) << "in place: " << in_place;
      EXPECT_EQ(fill(MissingFill::local, ReduceOp::avg), 1.0f) << "in place: " << in_place;
      EXPECT_EQ(fill(MissingFill::zero, ReduceOp::sum), 0.0f) << "in place: " << in_place;
    }
  }
}

}  // namespace
}  // namespace tarpon::testing_support::late_test
