// Aborts, verdicts, shrinking and goodbyes in live jobs in which nobody dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/membership/agreement.h"
#include "tests/support/membership_job.h"

namespace tarpon::membership_test {
namespace {

using namespace testing_support;

TEST(MembershipTest, busy__who_only_computes_is_waited_for) {
  auto ranks = connect(2, Datapath::mmsg);
  ASSERT_TRUE(ranks[0] && ranks[1]);
  std::vector<float> values(1000, 1.0f), others(1000, 1.0f);
  auto pending = ranks[0]->allreduce_async(patient_call(values, Mode::bounded));
  ASSERT_TRUE(pending);
  std::this_thread::sleep_for(600ms);
  EXPECT_FALSE(pending->done());
  EXPECT_EQ(ranks[1]->allreduce(patient_call(others, Mode::bounded))->status, Status::complete);
  EXPECT_EQ(pending->wait().status, Status::complete);
}

TEST(MembershipTest, abort__ends_calls_everywhere_and_for_good) {
  for (const bool threaded : {true, false}) {
    auto ranks = connect(3, Datapath::mmsg,
                         [&](CommunicatorOptions& options) { options.progress_thread = threaded; });
    ASSERT_TRUE(ranks[0] && ranks[1] && ranks[2]);
    std::vector<std::vector<float>> values(3, std::vector<float>(50'000, 1.0f));
    std::array<Report, 3> reports;
    std::vector<std::thread> waiting;
    for (Rank rank = 0; rank < 2; ++rank) {  // rank 2 never comes
      waiting.emplace_back(
          [&, rank] { reports[rank] = *ranks[rank]->allreduce(patient_call(values[rank])); });
    }
    std::this_thread::sleep_for(20ms);
    const Time start = monotonic_now();
    ranks[1]->abort("the loss is not a number");
    ranks[1]->abort("again");
    for (std::thread& thread : waiting) thread.join();
    std::printf("two ranks were back from their calls after %.2f ms\n",
                std::chrono::duration<double, std::milli>(monotonic_now() - start).count());
    for (Rank rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(reports[rank].status, Status::aborted);
      EXPECT_THAT(reports[rank].blamed, testing::ElementsAre(1));
    }
    const Time limit = monotonic_now() + 20s;
    for (Rank rank = 0; rank < 3; ++rank) {
      Report later;
      do {
        auto arguments = patient_call(values[rank]);
        arguments.deadline = 50ms;  // until the news is there
        later = *ranks[rank]->allreduce(arguments);
        // The packets of the abort may be faster, but know no reason.
      } while (later.detail != "rank 1 aborted: the loss is not a number" &&
               later.detail != "this rank aborted: the loss is not a number" &&
               monotonic_now() < limit);
      EXPECT_EQ(later.status, Status::aborted);
      EXPECT_THAT(later.detail, testing::HasSubstr("the loss is not a number"));
      EXPECT_THAT(later.blamed, testing::ElementsAre(1));
    }
  }
}

TEST(MembershipTest, abort__ends_what_waits_for_a_verdict) {
  auto ranks = connect(3, Datapath::mmsg);
  ASSERT_TRUE(ranks[0] && ranks[1] && ranks[2]);
  std::array<StepVerdict, 2> verdicts;
  std::vector<std::thread> waiting;
  for (Rank rank = 0; rank < 2; ++rank) {  // rank 2 never reports
    waiting.emplace_back([&, rank] { verdicts[rank] = ranks[rank]->agree(0, {}, 1h); });
  }
  std::this_thread::sleep_for(20ms);
  ranks[1]->abort("out of memory");
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(verdicts[0].verdict, Verdict::halt);
  EXPECT_EQ(verdicts[0].detail, "rank 1 aborted: out of memory");
  EXPECT_EQ(verdicts[1].verdict, Verdict::halt);
  EXPECT_EQ(verdicts[1].detail, "this rank aborted: out of memory");
  EXPECT_EQ(ranks[1]->agree(1, {}, 1h).verdict, Verdict::halt);
}

TEST(MembershipTest, abort__then_shrink_gives_a_communicator_that_works) {
  auto ranks = connect(3, Datapath::mmsg);
  ASSERT_TRUE(ranks[0] && ranks[1] && ranks[2]);
  ranks[2]->abort("out of step");
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto fresh = ranks[rank]->shrink(20s);
      ASSERT_TRUE(fresh) << fresh.error().message;
      std::vector<float> values(1000, 1.0f);
      EXPECT_EQ((*fresh)->allreduce(patient_call(values))->status, Status::complete);
      EXPECT_TRUE((*fresh)->close(20s));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The ranks compare a text of at most 32 KiB when they connect.
TEST(MembershipTest, shrink__any_number_of_times) {
  auto ranks = connect(2, Datapath::mmsg, [](CommunicatorOptions& options) {
    options.rendezvous.agreed = "test=" + std::string((32 << 10) - 600, 'x');
  });
  ASSERT_EQ(ranks.size(), 2u);
  on_all(2, [&](Rank rank) {
    for (int round = 0; round < 25; ++round) {
      auto fresh = ranks[rank]->shrink(20s);
      ASSERT_TRUE(fresh) << "round " << round << ": " << fresh.error().message.substr(0, 200);
      ranks[rank] = std::move(*fresh);
    }
    std::vector<float> values(100, 1.0f);
    expect_complete(ranks[rank]->allreduce(in_place(values)));
  });
}

TEST(MembershipTest, shrink__names_who_did_not_come) {
  auto ranks = connect(3, Datapath::mmsg);
  ASSERT_TRUE(ranks[0] && ranks[1] && ranks[2]);
  // Rank 1 may give up a moment earlier, and is named too then.
  std::thread other([&] { EXPECT_FALSE(ranks[1]->shrink(300ms)); });
  const auto shrunk = ranks[0]->shrink(300ms);
  other.join();
  ASSERT_FALSE(shrunk);
  EXPECT_EQ(shrunk.error().code, Error::Code::timeout);
  EXPECT_THAT(shrunk.error().message, testing::ContainsRegex("2 did not come"));
}

/// Rank 1 closes and is destroyed while the others go on.
TEST(MembershipTest, close__of_one_rank_costs_nobody_a_deadline_and_is_not_death) {
  for (const bool threaded : {true, false}) {
    auto ranks = connect(3, Datapath::mmsg,
                         [&](CommunicatorOptions& options) { options.progress_thread = threaded; });
    ASSERT_TRUE(ranks[0] && ranks[1] && ranks[2]);
    std::vector<std::vector<float>> values(3, std::vector<float>(1000, 1.0f));
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] { (void)ranks[rank]->allreduce(patient_call(values[rank])); });
    }
    for (std::thread& thread : threads) thread.join();
    // The others are outside of any call: their mesh threads answer.
    const auto closed = ranks[1]->close(20s);
    EXPECT_TRUE(closed) << closed.error().message;
    ranks[1].reset();
    Report report;
    const Time limit = monotonic_now() + 20s;
    do {  // until the end of its connection is noticed
      auto arguments = patient_call(values[0]);
      arguments.deadline = 100ms;
      report = *ranks[0]->allreduce(arguments);
    } while (report.detail.find("rank 1 left the communicator") == std::string::npos &&
             monotonic_now() < limit);
    EXPECT_THAT(report.detail, testing::HasSubstr("rank 1 left the communicator"));
    EXPECT_THAT(report.detail, testing::Not(testing::HasSubstr("dead")));
  }
}

TEST(MembershipTest, close__says_which_rank_has_not_finished) {
  auto ranks = connect(3, Datapath::mmsg);
  ASSERT_TRUE(ranks[0] && ranks[1] && ranks[2]);
  std::vector<float> values(1000, 1.0f), others(1000, 1.0f);
  std::thread other([&] {
    auto arguments = patient_call(others);
    arguments.deadline = 100ms;
    (void)ranks[0]->allreduce(arguments);
  });
  auto arguments = patient_call(values);
  arguments.deadline = 100ms;
  (void)ranks[1]->allreduce(arguments);  // rank 2 never makes this call
  other.join();
  const auto closed = ranks[1]->close(300ms);
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code, Error::Code::timeout);
  EXPECT_THAT(closed.error().message,
              testing::HasSubstr("close: rank 2 has not finished the operations of this rank by"));
}

TEST(MembershipTest, close__of_all_at_once) {
  auto ranks = connect(4, Datapath::mmsg);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(ranks[rank]);
    threads.emplace_back([&, rank] {
      const auto closed = ranks[rank]->close(20s);
      EXPECT_TRUE(closed) << closed.error().message;
      ranks[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MembershipTest, agree__late_ranks_get_the_verdict_that_was_given) {
  auto ranks = connect(3, Datapath::mmsg);
  ASSERT_TRUE(ranks[0] && ranks[1] && ranks[2]);
  std::thread other(
      [&] { EXPECT_EQ(ranks[1]->agree(7, {.lost_fraction = 0.2}, 500ms).verdict, Verdict::skip); });
  const StepVerdict verdict = ranks[0]->agree(7, {}, 500ms);
  other.join();
  EXPECT_EQ(verdict.verdict, Verdict::skip);
  EXPECT_EQ(verdict.reporters, 0b011u);  // rank 2 was not there by the bound
  const StepVerdict late = ranks[2]->agree(7, {.lost_fraction = 1.0}, 20s);
  EXPECT_TRUE(late.same(verdict));
}

TEST(MembershipTest, agree__without_a_verdict_it_halts) {
  auto ranks = connect(2, Datapath::mmsg);
  ASSERT_TRUE(ranks[0] && ranks[1]);
  // Step 5 has been forgotten: a second verdict on it could differ.
  for (std::uint64_t step = 5; step < 5 + Agreement::kKept + 1; ++step) {
    std::thread other([&] { (void)ranks[1]->agree(step, {}, 20s); });
    EXPECT_EQ(ranks[0]->agree(step, {}, 20s).verdict, Verdict::apply);
    other.join();
  }
  const StepVerdict verdict = ranks[1]->agree(5, {}, 100ms);
  EXPECT_EQ(verdict.verdict, Verdict::halt);
  EXPECT_EQ(verdict.reporters, 0u);
  EXPECT_THAT(verdict.detail, testing::HasSubstr("step 5 is forgotten"));
}

TEST(MembershipTest, agree__a_job_of_one_decides_alone) {
  auto ranks = connect(1, Datapath::mmsg, [](CommunicatorOptions& options) {
    options.loss_budgets = {{0, 0.5, 0.6}, {10, 0.1, 0.6}};
  });
  ASSERT_TRUE(ranks[0]);
  EXPECT_EQ(ranks[0]->agree(1, {.lost_fraction = 0.2}, 20s).verdict, Verdict::apply);
  EXPECT_EQ(ranks[0]->agree(10, {.lost_fraction = 0.2}, 20s).verdict, Verdict::skip);
}

}  // namespace
}  // namespace tarpon::membership_test
