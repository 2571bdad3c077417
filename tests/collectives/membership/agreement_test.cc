// Verdicts on steps: budgets, and the machine that decides, with deciders that die at every point.
#include "collectives/membership/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "collectives/allreduce.h"
#include "tests/support/agreement_job.h"
#include "tests/support/sanitized.h"
#include "transport/random.h"

namespace tarpon::agreement_test {
namespace {

using testing::HasSubstr;
using testing_support::AgreementJob;

constexpr Time kStart = AgreementJob::kStart;

TEST(AgreementTest, budget_for__the_last_phase_that_has_begun) {
  const std::vector<LossBudget> budgets{{0, 0.5, 0.9}, {100, 0.1, 0.5}, {200, 0.01, 0.2}};
  EXPECT_EQ(budget_for(budgets, 0).skip_above, 0.5);
  EXPECT_EQ(budget_for(budgets, 99).skip_above, 0.5);
  EXPECT_EQ(budget_for(budgets, 100).skip_above, 0.1);
  EXPECT_EQ(budget_for(budgets, 1'000'000).halt_above, 0.2);
  EXPECT_EQ(budget_for({}, 5), LossBudget{});
  EXPECT_EQ(budget_for({{10, 0.1, 0.2}}, 9), LossBudget{});
}

TEST(AgreementTest, decide__by_the_worst_report) {
  const LossBudget budget{0, 0.1, 0.5};
  EXPECT_EQ(decide(budget, {{0.0, false}, {0.1, false}}, 2), Verdict::apply);
  EXPECT_EQ(decide(budget, {{0.0, false}, {0.11, false}}, 2), Verdict::skip);
  EXPECT_EQ(decide(budget, {{0.5, false}, {0.0, false}}, 2), Verdict::skip);
  EXPECT_EQ(decide(budget, {{0.0, true}}, 2), Verdict::skip);
  EXPECT_EQ(decide(budget, {}, 0), Verdict::halt);
}

TEST(AgreementTest, decide__halts_at_the_third_heavy_step_in_a_row) {
  const LossBudget budget{0, 0.1, 0.5};
  for (const bool nonfinite : {false, true}) {
    EXPECT_EQ(decide(budget, {{0.51, nonfinite}, {0.0, false}}, 0), Verdict::skip);
    EXPECT_EQ(decide(budget, {{0.51, nonfinite}, {0.0, false}}, 1), Verdict::skip);
    EXPECT_EQ(decide(budget, {{0.51, nonfinite}, {0.0, false}}, 2), Verdict::halt);
  }
}

TEST(AgreementTest, usual__skips_nothing_below_twenty_loss_targets) {
  EXPECT_EQ(LossBudget::usual(0.001), (LossBudget{0, 0.05, 0.5}));
  EXPECT_EQ(LossBudget::usual(0.01), (LossBudget{0, 0.2, 0.5}));
  EXPECT_EQ(LossBudget::usual(0.1), (LossBudget{0, 0.5, 0.5}));
}

TEST(AgreementTest, loss_report__late_ranks_and_void_shards_do_not_count) {
  Report report;
  report.status = Status::partial;
  report.causes = {0.01, 0.02, 0.03, 0.25, 0.125};
  report.late_ranks = {2};
  EXPECT_DOUBLE_EQ(loss_report(report).lost_fraction, 0.06);
  EXPECT_EQ(loss_report(report).late, 0b100u);
  report.status = Status::peer_late;
  EXPECT_EQ(loss_report(report).lost_fraction, 1);
}

TEST(AgreementTest, decide__what_is_no_share_counts_as_all) {
  for (const double wild : {-0.1, 1.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(decide({0, 0.1, 0.5}, {{wild, false}}, 2), Verdict::halt) << wild;
  }
}

TEST(AgreementTest, encode__decode_inverts_it_and_refuses_the_rest) {
  AgreementMessage message;
  message.kind = AgreementMessage::Kind::verdict;
  message.step = 0x123456789abcull;
  message.report = {0.25, true, 0x1000000000000001ull, 0x99aabbccddeeff00ull};
  message.patience_ms = 77;
  message.verdict = {Verdict::skip,
                     message.step,
                     0.375,
                     0x8000000000000001ull,
                     63,
                     "why",
                     0x4000000000000004ull,
                     0x2000000000000002ull,
                     0x0800000000000008ull};
  const std::string bytes = encode(message);
  const auto decoded = decode_agreement(bytes, 64);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->kind, message.kind);
  EXPECT_EQ(decoded->step, message.step);
  EXPECT_EQ(decoded->report.lost_fraction, 0.25);
  EXPECT_TRUE(decoded->report.nonfinite);
  EXPECT_EQ(decoded->report.late, message.report.late);
  EXPECT_EQ(decoded->report.digest, message.report.digest);
  EXPECT_EQ(decoded->patience_ms, 77u);
  EXPECT_TRUE(decoded->verdict.same(message.verdict));
  EXPECT_EQ(decoded->verdict.lost_fraction, 0.375);
  EXPECT_EQ(decoded->verdict.reporters, message.verdict.reporters);
  EXPECT_EQ(decoded->verdict.decided_by, 63);
  EXPECT_EQ(decoded->verdict.detail, "why");
  EXPECT_EQ(decoded->verdict.rejoin, message.verdict.rejoin);
  EXPECT_EQ(decoded->verdict.differing, message.verdict.differing);
  EXPECT_EQ(decoded->verdict.gone, message.verdict.gone);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_agreement(bytes.substr(0, length), 64)) << length;
  }
  EXPECT_FALSE(decode_agreement(bytes + "x", 64));
  std::string wrong = bytes;
  wrong[0] = 5;
  EXPECT_FALSE(decode_agreement(wrong, 64));
  wrong[0] = 1;
  wrong[2] = 3;
  EXPECT_FALSE(decode_agreement(wrong, 64));
}

TEST(AgreementMessage, ranks_and_shares_that_cannot_be__are_refused) {
  const auto decoded = [](const StepVerdict& verdict, std::uint64_t late = 0) {
    AgreementMessage message;
    message.kind = AgreementMessage::Kind::verdict;
    message.verdict = verdict;
    message.report.late = late;
    return decode_agreement(encode(message), 3);
  };
  StepVerdict good;
  good.lost_fraction = 1;
  good.reporters = 7;
  good.decided_by = 2;
  EXPECT_TRUE(decoded(good, 7));
  EXPECT_FALSE(decoded(good, 8));
  for (const Rank decided_by : {Rank{3}, kUnknownRank}) {
    StepVerdict bad = good;
    bad.decided_by = decided_by;
    EXPECT_FALSE(decoded(bad)) << decided_by;
  }
  for (std::uint64_t StepVerdict::*mask :
       {&StepVerdict::reporters, &StepVerdict::rejoin, &StepVerdict::differing, &StepVerdict::gone,
        &StepVerdict::late}) {
    StepVerdict bad = good;
    bad.*mask = 8;
    EXPECT_FALSE(decoded(bad));
  }
  for (const double lost : {-0.1, 1.1, std::nan("")}) {
    StepVerdict bad = good;
    bad.lost_fraction = lost;
    EXPECT_FALSE(decoded(bad)) << lost;
  }
}

TEST(AgreementTest, all_report__one_verdict_everywhere) {
  AgreementJob job(3);
  for (Rank rank = 0; rank < 3; ++rank) job.report(rank, 4, rank == 1 ? 0.2 : 0.0);
  job.deliver_all();
  for (Rank rank = 0; rank < 3; ++rank) {
    const auto verdict = job[rank].verdict(4);
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->verdict, Verdict::skip);
    EXPECT_EQ(verdict->reporters, 0b111u);
    EXPECT_EQ(verdict->decided_by, 0);
    EXPECT_THAT(verdict->detail, HasSubstr("20.00 %"));
  }
}

TEST(AgreementTest, digests__those_that_differ_from_the_lowest_rank_s_are_named) {
  AgreementJob job(5);
  const std::array<std::uint64_t, 5> digests{0, 7, 8, 7, 9};  // rank 0 tells none
  for (const Rank rank : std::initializer_list<Rank>{4, 2, 0, 1, 3}) {
    job.report(rank, 4, 0, digests[rank]);
  }
  for (Rank rank = 0; rank < 5; ++rank) job.report(rank, 5, 0, 7);
  for (Rank rank = 0; rank < 5; ++rank) job.report(rank, 6, 0);
  job.deliver_all();
  for (Rank rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(job[rank].verdict(4)->verdict, Verdict::apply);
    EXPECT_EQ(job[rank].verdict(4)->differing, 0b10100u);
    EXPECT_EQ(job[rank].verdict(5)->differing, 0u);
    EXPECT_EQ(job[rank].verdict(6)->differing, 0u);
  }
}

TEST(AgreementTest, gone__ranks_that_left_and_those_whose_processes_ended) {
  Facts facts(4);
  Agreement machine(0, facts, {});
  const auto gone_at = [&](std::uint64_t step) {
    machine.report(step, {}, 1s, kStart);
    machine.tick(kStart + 2s);
    return machine.verdict(step)->gone;
  };
  EXPECT_EQ(gone_at(1), 0u);
  facts.learn({.rank = 1, .standing = Standing::left, .evidence = {}, .next_numbers = {}});
  EXPECT_EQ(gone_at(2), 0b0010u);
  // Dead by silence: it may come back.
  facts.learn({.rank = 2, .standing = Standing::dead, .evidence = {}, .next_numbers = {}});
  EXPECT_EQ(gone_at(3), 0b0010u);
  machine.note_gone(2);
  EXPECT_EQ(gone_at(4), 0b0110u);
}

TEST(AgreementTest, late_rank__is_not_waited_for_and_gets_the_same) {
  AgreementJob job(3);
  job.report(0, 4, 0);
  job.report(1, 4, 0);
  job.deliver_all();
  EXPECT_FALSE(job[0].verdict(4));
  EXPECT_EQ(job[0].next_deadline(), kStart + 1s);
  job.pass(1s);
  job.deliver_all();
  EXPECT_EQ(job[2].verdict(4)->verdict, Verdict::apply);
  job.report(2, 4, 1.0);  // changes nothing any more
  job.deliver_all();
  for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(job[rank].verdict(4)->verdict, Verdict::apply);
}

TEST(AgreementTest, rank_that_was_late_for_a_call__is_not_waited_for) {
  AgreementJob job(3);
  job[0].report(4, {.lost_fraction = 0, .late = 0b100}, 1s, job.now);
  job.report(1, 4, 0);
  job.deliver_all();
  job.pass(1ms);
  job.deliver_all();
  ASSERT_TRUE(job[2].verdict(4));
  EXPECT_EQ(job[2].verdict(4)->reporters, 0b011u);
  for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(job[rank].verdict(4)->late, 0b100u) << rank;
}

TEST(AgreementTest, silent_rank__is_not_waited_for) {
  AgreementJob job(3);
  job[0].set_silent(0b100, job.now);
  job.report(0, 4, 0);
  job.report(1, 4, 0);
  job.deliver_all();
  ASSERT_TRUE(job[1].verdict(4));
  EXPECT_EQ(job[1].verdict(4)->reporters, 0b011u);
  job.report(0, 5, 0);
  job.report(1, 5, 0);
  job[0].set_silent(0, job.now);  // it answers again, before the others have reported
  job.report(0, 6, 0);
  job.report(1, 6, 0);
  job.deliver_all();
  EXPECT_FALSE(job[1].verdict(6));
  job[0].set_silent(0b100, job.now);
  job.pass(1ms);
  job.deliver_all();
  EXPECT_TRUE(job[1].verdict(6));
}

TEST(AgreementTest, decider__that_is_late_itself_decides_from_the_others) {
  AgreementJob job(3);
  job.report(1, 0, 0.2);
  job.report(2, 0, 0);
  job.deliver_all();
  job.pass(1s);
  job.deliver_all();
  for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(job[rank].verdict(0)->verdict, Verdict::skip);
}

TEST(AgreementTest, decider_dies__before_it_decided_the_next_one_does) {
  AgreementJob job(4);
  for (Rank rank = 1; rank < 4; ++rank) job.report(rank, 0, 0.0);
  job.kill(0);
  job.deliver_all();
  for (Rank rank = 1; rank < 4; ++rank) {
    ASSERT_TRUE(job[rank].verdict(0));
    EXPECT_EQ(job[rank].verdict(0)->decided_by, 1);
  }
}

TEST(AgreementTest, decider_dies__what_it_told_one_rank_the_next_decider_passes_on) {
  AgreementJob job(4);
  for (Rank rank = 0; rank < 4; ++rank) job.report(rank, 0, rank == 0 ? 0.2 : 0.0);
  for (Rank rank = 1; rank < 4; ++rank) ASSERT_TRUE(job.deliver(rank, 0));
  // It has decided: skip. The verdict reaches rank 3 alone.
  job.kill(0, 2);
  job.deliver_all();
  for (Rank rank = 1; rank < 4; ++rank) {
    ASSERT_TRUE(job[rank].verdict(0));
    EXPECT_EQ(job[rank].verdict(0)->verdict, Verdict::skip);
    EXPECT_EQ(job[rank].verdict(0)->decided_by, 0);
  }
}

TEST(AgreementTest, next_decider__waits_for_ranks_that_still_hear_the_old_one) {
  AgreementJob job(3);
  for (Rank rank = 1; rank < 3; ++rank) job.report(rank, 0, 0.0);
  job.kill(0);
  while (job.deliver(0, 1)) continue;  // rank 2 does not know yet
  EXPECT_EQ(job[1].decider(), 1);
  job.pass(10s);
  EXPECT_FALSE(job[1].verdict(0));
  EXPECT_EQ(job[1].next_deadline(), kNever);
  job.deliver_all();
  EXPECT_TRUE(job[1].verdict(0));
}

TEST(AgreementTest, forgotten__steps_are_not_decided_again) {
  AgreementJob job(2);
  for (std::uint64_t step = 0; step < Agreement::kKept + 3; ++step) {
    for (Rank rank = 0; rank < 2; ++rank) job.report(rank, step, 0.0);
    job.deliver_all();
  }
  EXPECT_FALSE(job[1].verdict(2));
  EXPECT_TRUE(job[1].verdict(3));
  job.report(0, 2, 1.0);
  job.report(1, 2, 1.0);
  job.deliver_all();
  job.pass(10s);
  for (Rank rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job[rank].verdict(2));
    EXPECT_EQ(job[rank].verdict(2)->verdict, Verdict::halt);
    EXPECT_EQ(job[rank].verdict(2)->reporters, 0u);
    EXPECT_THAT(job[rank].verdict(2)->detail, HasSubstr("step 2 is forgotten"));
    EXPECT_EQ(job[rank].verdict(Agreement::kKept)->verdict, Verdict::apply);
  }
}

TEST(AgreementTest, forgotten__by_others_holds_for_the_next_decider) {
  AgreementJob job(3);
  for (std::uint64_t step = 0; step < Agreement::kKept + 3; ++step) {
    for (Rank rank = 0; rank < 3; ++rank) job.report(rank, step, 0.0);
    job.deliver_all();
  }
  job.kill(0);
  job.report(1, 0, 1.0);
  job.report(2, 0, 1.0);
  job.deliver_all();
  job.pass(10s);
  for (Rank rank = 1; rank < 3; ++rank) {
    ASSERT_TRUE(job[rank].verdict(0));
    EXPECT_EQ(job[rank].verdict(0)->reporters, 0u);
  }
}

TEST(AgreementTest, two_verdicts__of_one_step_halt_whoever_hears_them) {
  const Facts facts(3);
  Agreement rank(2, facts, {});
  const auto say = [&](Rank from, Verdict verdict) {
    AgreementMessage message;
    message.kind = AgreementMessage::Kind::verdict;
    message.step = 9;
    message.verdict = {verdict, 9, 0, 1, from, ""};
    rank.receive(from, message, Agreement::Carrier::stream, kStart);
  };
  say(0, Verdict::apply);
  say(0, Verdict::apply);
  EXPECT_EQ(rank.verdict(9)->verdict, Verdict::apply);
  say(1, Verdict::halt);
  for (const std::uint64_t step : {9u, 10u}) {
    ASSERT_TRUE(rank.verdict(step));
    EXPECT_EQ(rank.verdict(step)->verdict, Verdict::halt);
    EXPECT_THAT(rank.verdict(step)->detail,
                HasSubstr("step 9 was decided apply by rank 0 and halt by rank 1"));
  }
}

/// No two living ranks hold different verdicts.
void expect_alike(AgreementJob& job, std::uint64_t step) {
  std::optional<StepVerdict> first;
  for (Rank rank = 0; rank < job.size(); ++rank) {
    if (job.dead(rank)) continue;
    const auto verdict = job[rank].verdict(step);
    if (!verdict) continue;
    EXPECT_THAT(verdict->detail, testing::Not(HasSubstr("replicas differ")));
    if (!first) first = verdict;
    EXPECT_TRUE(verdict->same(*first)) << "rank " << rank << " step " << step;
  }
}

/// Deaths between any two messages, messages of pairs in any order, datagrams in any order and
/// number: in the end all survivors have a verdict.
TEST(AgreementTest, random_deaths__never_two_verdicts_of_one_step) {
  for (std::uint64_t seed = 1; seed <= (testing_support::kSanitizer ? 500 : 3000) && !HasFailure();
       ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto ranks = static_cast<Rank>(2 + random.below(5));
    AgreementJob job(ranks);
    Rank alive = ranks;
    for (std::uint64_t step = 0; step < 3; ++step) {
      std::vector<bool> reported(ranks);
      for (int turn = 0; turn < 60; ++turn) {
        const auto a = static_cast<Rank>(random.below(ranks));
        const auto b = static_cast<Rank>(random.below(ranks));
        if (!job.dead(a) && !reported[a]) {
          job.report(a, step, static_cast<double>(random.below(100)) / 100);
          reported[a] = true;
        } else if (alive > 1 && !job.dead(a) && random.below(25) == 0) {
          job.kill(a, random.below(4));
          --alive;
        } else if (a != b) {
          job.deliver(a, b);
        }
        if (random.below(40) == 0) job.pass(1s);
        if (random.below(3) == 0) job.stir_datagrams(random);
        for (std::uint64_t known = 0; known <= step; ++known) expect_alike(job, known);
      }
      for (Rank rank = 0; rank < ranks; ++rank) {
        if (!job.dead(rank) && !reported[rank]) job.report(rank, step, 0);
      }
    }
    if (random.chance(0.5)) job.lose_datagrams();
    job.deliver_all();
    job.pass(5s);
    job.deliver_all();
    job.deliver_datagrams();  // late ones
    job.deliver_all();
    for (std::uint64_t step = 0; step < 3 && !HasFailure(); ++step) {
      expect_alike(job, step);
      for (Rank rank = 0; rank < ranks; ++rank) {
        if (job.dead(rank)) continue;
        EXPECT_TRUE(job[rank].verdict(step)) << "rank " << rank << " step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace tarpon::agreement_test
