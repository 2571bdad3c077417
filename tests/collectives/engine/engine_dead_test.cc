// Calls of whole jobs in virtual time in which ranks die, or abort.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_job.h"

namespace tarpon::engine_dead_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::Buffers;
using testing_support::SimulatedJob;

AllreduceArguments bounded(Buffers<float>& buffers, Rank rank, Duration bound = 10s) {
  auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
  arguments.mode = Mode::bounded;
  arguments.bound = bound;
  arguments.deadline = 60s;
  return arguments;
}

AllreduceArguments exact(Buffers<float>& buffers, Rank rank) {
  auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
  arguments.deadline = 60s;
  return arguments;
}

/// Every run of the result is the sum of the contributors that the report names, scaled to all.
void expect_truth(const Buffers<float>& buffers, Rank rank, const Report& report) {
  const auto world = static_cast<std::uint32_t>(buffers.inputs.size());
  for (const ContributorRun& run : report.runs) {
    for (std::uint64_t i = run.first; i < run.first + run.count; i += 97) {
      double sum = 0;
      std::uint32_t count = 0;
      for (Rank other = 0; other < world; ++other) {
        if ((run.contributors >> other & 1) == 0) continue;
        sum += buffers.inputs[other][i];
        ++count;
      }
      const double expected = count == 0 ? 0 : sum * world / count;
      ASSERT_NEAR(buffers.outputs[rank][i], expected, 1e-3) << "element " << i;
    }
  }
}

TEST(EngineDeadTest, exact__in_flight_and_queued_calls_end_at_once_naming_it) {
  SimulatedJob job({.ranks = 4});
  std::vector<std::unique_ptr<Buffers<float>>> buffers;
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int call = 0; call < 12; ++call) {  // the window and four that queue
    buffers.push_back(std::make_unique<Buffers<float>>(4, 20'000, false));
    for (const Rank rank : {Rank{0}, Rank{1}, Rank{3}}) {
      calls.push_back(job.submit(rank, exact(*buffers.back(), rank)));
    }
  }
  job.run_for(5ms);
  job.kill(2);
  job.tell_dead(2);
  ASSERT_TRUE(job.finish(1ms));
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::peer_dead);
    EXPECT_THAT(call->report.blamed, ElementsAre(2));
    EXPECT_EQ(call->report.detail, "rank 2 is dead: killed by a test");
  }
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{3}}) EXPECT_EQ(job[rank].outstanding(), 0u);
}

TEST(EngineDeadTest, exact__a_result_that_is_whole_needs_nobody) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 100'000, false);  // shards that peers confirm
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 3; ++rank) calls.push_back(job.submit(rank, exact(buffers, rank)));
  for (bool whole = false; !whole;) {
    job.run_for(10us);
    whole = calls[0]->done && calls[1]->done;
  }
  job.kill(2);
  job.tell_dead(2);
  ASSERT_TRUE(job.finish(1s));
  EXPECT_EQ(calls[0]->report.status, Status::complete);
  EXPECT_EQ(calls[1]->report.status, Status::complete);
}

TEST(EngineDeadTest, exact__of_nothing_waits_for_nobody_dead) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 0, false);
  auto call = job.submit(0, exact(buffers, 0));
  job.submit(1, exact(buffers, 1));
  job.run_for(5ms);
  EXPECT_FALSE(call->done);
  job.kill(2);
  job.tell_dead(2);
  ASSERT_TRUE(job.finish(1ms));
  EXPECT_EQ(call->report.status, Status::peer_dead);
}

TEST(EngineDeadTest, mixed__exact_calls_fail_and_bounded_ones_still_match) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 5000, false);
  // Rank 0 learns of the death before its exact call, rank 1 amid it.
  auto amid = job.submit(1, exact(buffers, 1));
  job.run_for(1ms);
  job.kill(2);
  job.tell_dead(2);
  auto later = job.submit(0, exact(buffers, 0));
  ASSERT_TRUE(job.finish(1ms));
  EXPECT_EQ(amid->report.status, Status::peer_dead);
  EXPECT_EQ(later->report.status, Status::peer_dead);
  for (std::uint32_t number = 1; number < 20; ++number) {
    Buffers<float> fresh(3, 5000, false, number);
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < 2; ++rank) calls.push_back(job.submit(rank, bounded(fresh, rank)));
    ASSERT_TRUE(job.finish(1s));
    for (Rank rank = 0; rank < 2; ++rank) {
      const Report& report = calls[rank]->report;
      EXPECT_EQ(report.operation, number);
      ASSERT_EQ(report.status, Status::partial) << report.detail;
      EXPECT_THAT(report.late_ranks, ElementsAre(2));
      EXPECT_EQ(report.missing[2], 5000u);
      expect_truth(fresh, rank, report);
    }
  }
}

TEST(EngineDeadTest, bounded__a_death_at_any_time_costs_that_rank_and_no_more) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto ranks = static_cast<std::uint16_t>(2 + random.below(5));
    SimulatedJob job(
        {.ranks = ranks, .faults = {.loss = random.below(2) == 0 ? 0.0 : 0.01}, .seed = seed});
    const auto victim = static_cast<Rank>(random.below(ranks));
    const std::uint64_t count = 1 + random.below(60'000);
    Buffers<float> buffers(ranks, count, random.below(2) == 0, seed);
    std::vector<std::shared_ptr<PendingCall>> calls(ranks);
    for (Rank rank = 0; rank < ranks; ++rank) {
      if (rank == victim && random.below(4) == 0) continue;
      calls[rank] = job.submit(rank, bounded(buffers, rank, 500ms));
    }
    job.run_for(std::chrono::microseconds(random.below(3000)));
    job.kill(victim);
    job.run_for(std::chrono::microseconds(random.below(500)));
    job.tell_dead(victim);
    ASSERT_TRUE(job.finish(10s));
    for (Rank rank = 0; rank < ranks; ++rank) {
      if (rank == victim) continue;
      const Report& report = calls[rank]->report;
      EXPECT_TRUE(report.status == Status::complete || report.status == Status::partial)
          << name(report.status) << " " << report.detail;
      for (const Rank late : report.late_ranks) EXPECT_EQ(late, victim);
      expect_truth(buffers, rank, report);
    }
    if (HasFailure()) return;
  }
}

TEST(EngineDeadTest, bounded__the_last_one_alive_goes_on_alone) {
  SimulatedJob job({.ranks = 4});
  for (Rank rank = 1; rank < 4; ++rank) {
    job.kill(rank);
    job.tell_dead(rank);
  }
  Buffers<float> buffers(4, 4000, false);
  auto call = job.submit(0, bounded(buffers, 0));
  ASSERT_TRUE(job.finish(1ms));
  EXPECT_EQ(call->report.status, Status::partial);
  EXPECT_THAT(call->report.late_ranks, ElementsAre(1, 2, 3));
  expect_truth(buffers, 0, call->report);
  auto failed = job.submit(0, exact(buffers, 0));
  ASSERT_TRUE(job.finish(1ms));
  EXPECT_THAT(failed->report.blamed, ElementsAre(1, 2, 3));
}

TEST(EngineDeadTest, silent__bounded_calls_list_it) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 5000, false);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 2; ++rank) calls.push_back(job.submit(rank, bounded(buffers, rank)));
  job.stop(2);
  ASSERT_TRUE(job.finish(1s));
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(calls[rank]->report.status, Status::partial);
    EXPECT_THAT(calls[rank]->report.late_ranks, ElementsAre(2));
    expect_truth(buffers, rank, calls[rank]->report);
  }
}

TEST(EngineDeadTest, silent__an_exact_call_says_at_its_deadline_how_many_ranks_answer) {
  struct Row {
    std::vector<Rank> killed;
    const char* text;
  };
  for (const Row& row :
       {Row{{3}, "; 3 of 4 ranks answer"}, Row{{2, 3}, "; cut off: 2 of 4 ranks answer"},
        Row{{1, 2, 3}, "; cut off: 1 of 4 ranks answer"}}) {
    SimulatedJob job({.ranks = 4});
    Buffers<float> buffers(4, 5000, false);
    for (const Rank rank : row.killed) job.kill(rank);
    auto arguments = exact(buffers, 0);
    arguments.deadline = 1s;
    const auto call = job.submit(0, arguments);
    ASSERT_TRUE(job.finish(2s));
    EXPECT_EQ(call->report.status, Status::peer_late);
    EXPECT_THAT(call->report.detail, testing::EndsWith(row.text));
  }
}

/// Of shards so large that they are confirmed in place of copied, where everybody is there.
TEST(EngineDeadTest, silent__what_it_missed_is_kept_for_it) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 100'000, false);
  job.stop(1);
  const auto alone = job.submit(0, bounded(buffers, 0));
  ASSERT_TRUE(job.finish(1s));
  EXPECT_EQ(alone->report.status, Status::partial);
  job.resume(1);
  const auto late = job.submit(1, bounded(buffers, 1, 50ms));
  ASSERT_TRUE(job.finish(1s));
  EXPECT_EQ(late->report.status, Status::late_self);
  EXPECT_EQ(late->report.bytes_fetched, 50'000 * sizeof(float));
}

TEST(EngineDeadTest, abort_for_good__later_calls_end_at_once) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 5000, false);
  auto outstanding = job.submit(0, exact(buffers, 0));
  job.run_for(1ms);
  job[0].abort_for_good(1, "enough", job.now());
  job[0].abort_for_good(0, "again", job.now());
  ASSERT_TRUE(job.finish(1ms));
  auto later = job.submit(0, bounded(buffers, 0));
  EXPECT_TRUE(later->done);
  for (const auto& call : {outstanding, later}) {
    EXPECT_EQ(call->report.status, Status::aborted);
    EXPECT_THAT(call->report.blamed, ElementsAre(1));
    EXPECT_THAT(call->report.detail, HasSubstr("rank 1 aborted: enough"));
  }
}

/// Calls of rank 0 after its last one: each on a fresh tag, and now and then one of tag 0.
void expect_numbers_on_fresh_tags(SimulatedJob& job, Status status) {
  constexpr std::uint32_t kTags = 100'000, kRemembered = 65'536;
  Buffers<float> buffers(2, 10, false);
  const auto number_of = [&](std::uint32_t tag) {
    AllreduceArguments arguments = exact(buffers, 0);
    arguments.tag = tag;
    const Report report = job.submit(0, arguments)->report;
    EXPECT_EQ(report.status, status);
    return report.operation;
  };
  std::uint32_t of_tag_0 = number_of(0);
  for (std::uint32_t tag = 1; tag <= kTags; ++tag) {
    ASSERT_EQ(number_of(tag), 0u) << "tag " << tag;
    if (tag % 1000 != 0) continue;
    ASSERT_EQ(number_of(0), ++of_tag_0);
  }
  EXPECT_EQ(number_of(kTags), 1u);
  EXPECT_EQ(number_of(kTags - kRemembered / 2), 1u);
  EXPECT_EQ(number_of(kTags - kRemembered / 2), 2u);
  // What bounds the memory: the oldest numbers are forgotten.
  EXPECT_EQ(number_of(1), 0u);
  EXPECT_EQ(number_of(kTags - kRemembered), 0u);
}

TEST(EngineDeadTest, abort_for_good__numbers_of_many_tags_are_limited_and_go_on) {
  SimulatedJob job({.ranks = 2});
  job[0].abort_for_good(1, "enough", job.now());
  expect_numbers_on_fresh_tags(job, Status::aborted);
}

TEST(EngineDeadTest, evicted__numbers_of_many_tags_are_limited_and_go_on) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 5000, false);
  const auto amid = job.submit(0, exact(buffers, 0));
  job.run_for(1ms);
  job[0].learn(testing_support::evicted(0), job.now());
  ASSERT_TRUE(job.finish(1ms));
  EXPECT_EQ(amid->report.operation, 0u);
  expect_numbers_on_fresh_tags(job, Status::evicted);
}

TEST(EngineDeadTest, evicted__exact_calls_end_naming_it_bounded_ones_go_on) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> first(3, 20'000, false), second(3, 20'000, false), third(3, 20'000, false);
  std::vector<std::shared_ptr<PendingCall>> calls, amid, later;
  for (Rank rank = 0; rank < 2; ++rank) {
    calls.push_back(job.submit(rank, exact(first, rank)));
    amid.push_back(job.submit(rank, bounded(second, rank)));
  }
  job.run_for(5ms);
  job.kill(2);
  for (Rank rank = 0; rank < 2; ++rank) job[rank].learn(testing_support::evicted(2), job.now());
  for (Rank rank = 0; rank < 2; ++rank) later.push_back(job.submit(rank, exact(third, rank)));
  ASSERT_TRUE(job.finish(1s));
  for (Rank rank = 0; rank < 2; ++rank) {
    for (const auto& call : {calls[rank], later[rank]}) {
      EXPECT_EQ(call->report.status, Status::evicted);
      EXPECT_THAT(call->report.blamed, ElementsAre(2));
      EXPECT_EQ(call->report.detail, "rank 2 is evicted: a test says so");
    }
    EXPECT_EQ(amid[rank]->report.status, Status::partial);
    expect_truth(second, rank, amid[rank]->report);
  }
  job.tell_dead(2);  // it dies as well
  auto last = job.submit(0, exact(third, 0));
  ASSERT_TRUE(job.finish(1ms));
  EXPECT_EQ(last->report.status, Status::peer_dead);
  EXPECT_THAT(last->report.blamed, ElementsAre(2));
}

TEST(EngineDeadTest, evicted_itself__all_its_calls_end_and_nobody_is_told) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 20'000, false);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 1; rank < 3; ++rank) calls.push_back(job.submit(rank, exact(buffers, rank)));
  job.run_for(5ms);
  job[2].learn(testing_support::evicted(2), job.now());
  job.run_for(1ms);
  ASSERT_TRUE(calls[1]->done);
  EXPECT_FALSE(calls[0]->done);
  auto later = job.submit(2, bounded(buffers, 2));
  ASSERT_TRUE(later->done);
  for (const auto& call : {calls[1], later}) {
    EXPECT_EQ(call->report.status, Status::evicted);
    EXPECT_THAT(call->report.blamed, ElementsAre(2));
    EXPECT_THAT(call->report.detail, HasSubstr("this rank is evicted: a test says so"));
  }
  EXPECT_EQ(later->report.operation, 1u);
  EXPECT_EQ(job[2].outstanding(), 0u);
}

TEST(EngineDeadTest, evicted_itself__a_call_that_others_make_differently_is_a_mismatch) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 20'000, false);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 3; ++rank) {
    AllreduceArguments arguments = bounded(buffers, rank, 5ms);
    if (rank == 2) arguments.count /= 2;
    calls.push_back(job.submit(rank, arguments));
  }
  job.run_for(1ms);  // the ranks that differ are still collected
  ASSERT_FALSE(calls[2]->done);
  job[2].learn(testing_support::evicted(2), job.now());
  job.run_for(1ms);
  ASSERT_TRUE(calls[2]->done);
  EXPECT_EQ(calls[2]->report.status, Status::mismatch) << name(calls[2]->report.status);
  EXPECT_THAT(calls[2]->report.blamed, ElementsAre(2));
}

TEST(EngineDeadTest, evicted__a_rank_that_saw_no_difference_hears_of_it_before_its_bound) {
  constexpr Duration kBound = 20ms;
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 20'000, false);
  job[0].learn(testing_support::evicted(3), job.now());  // nothing of rank 3 is read any more
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    AllreduceArguments arguments = bounded(buffers, rank, kBound);
    if (rank == 3) arguments.count /= 2;
    calls.push_back(job.submit(rank, arguments));
  }
  ASSERT_TRUE(job.finish());
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) {
    const Report& report = calls[rank]->report;
    EXPECT_EQ(report.status, Status::mismatch) << rank << ": " << name(report.status);
    EXPECT_LT(report.elapsed, kBound + 1ms);
  }
}

TEST(EngineDeadTest, dead_itself_to_the_others__all_its_calls_end_as_evicted) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 20'000, false);
  const auto open = job.submit(2, exact(buffers, 2));
  job.run_for(5ms);
  const Fact own = {.rank = 2, .standing = Standing::dead, .evidence = "silent for 5 s"};
  job[2].learn(own, job.now());
  job.run_for(1ms);
  ASSERT_TRUE(open->done);
  const auto later = job.submit(2, bounded(buffers, 2));
  ASSERT_TRUE(later->done) << "it would reduce over itself alone";
  for (const auto& call : {open, later}) {
    EXPECT_EQ(call->report.status, Status::evicted);
    EXPECT_THAT(call->report.blamed, ElementsAre(2));
    EXPECT_THAT(call->report.detail, HasSubstr("this rank is dead to the others: silent for 5 s"));
  }
}

TEST(EngineDeadTest, retention_full__the_rank_that_holds_back_is_wished_out_after_a_deadline) {
  SimulatedJob job({.ranks = 4, .retain_bytes = 1});
  Buffers<float> buffers(4, 5000, false);
  job.kill(2);  // silent, and nobody knows why
  // The first result is kept, the others have no room.
  std::uint64_t wished = 0;
  Time first_refused{};
  for (int call = 0; wished == 0; ++call) {
    ASSERT_LT(call, 100);
    const Time begin = job.now();
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (const Rank rank : {Rank{0}, Rank{1}, Rank{3}}) {
      auto arguments = bounded(buffers, rank, 5ms);
      arguments.deadline = 100ms;
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish(1s));
    EXPECT_LE(job.now() - begin, 6ms) << "no call waits for room";
    for (const auto& one : calls) EXPECT_EQ(one->report.status, Status::partial);
    if (call == 1) first_refused = job.now();
    wished = job[0].take_eviction_wish();
  }
  EXPECT_EQ(wished, 0b0100u);
  EXPECT_GE(job.now() - first_refused, 95ms);
  EXPECT_EQ(job[0].take_eviction_wish(), 0u);
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{3}})
    job[rank].learn(testing_support::evicted(2, "wished"), job.now());
  const Time begin = job.now();
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{3}}) {
    job.submit(rank, bounded(buffers, rank, 5ms));
  }
  ASSERT_TRUE(job.finish(1s));
  EXPECT_LT(job.now() - begin, 20ms);
}

}  // namespace
}  // namespace tarpon::engine_dead_test
