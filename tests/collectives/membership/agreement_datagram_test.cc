// Reports and verdicts as datagrams: which are repeated, which are ignored, and which may overtake
// messages of the streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "collectives/membership/agreement.h"
#include "tests/support/agreement_job.h"

namespace tarpon::agreement_datagram_test {
namespace {

using testing::HasSubstr;
using testing_support::AgreementJob;

constexpr Time kStart = AgreementJob::kStart;

TEST(AgreementDatagramTest, pack__unpack_inverts_it_but_for_the_text) {
  AgreementMessage message;
  message.kind = AgreementMessage::Kind::verdict;
  message.step = 9;
  message.verdict = {Verdict::skip, 9, 0.375, 0b111, 2, "why", 0b10, 0b100, 0b1};
  const AgreementPayload payload = pack(message);
  EXPECT_TRUE(payload.is_of_datagram());
  const auto unpacked = unpack(payload, 3);
  ASSERT_TRUE(unpacked);
  EXPECT_EQ(unpacked->verdict.detail, "");
  message.verdict.detail.clear();
  EXPECT_EQ(encode(*unpacked), encode(message));
}

TEST(AgreementDatagramTest, datagrams__are_enough_while_the_streams_stand_still) {
  AgreementJob job(3);
  for (Rank rank = 0; rank < 3; ++rank) job.report(rank, 4, rank == 1 ? 0.2 : 0.0);
  job.deliver_datagrams();
  for (Rank rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(job[rank].verdict(4));
    EXPECT_EQ(job[rank].verdict(4)->verdict, Verdict::skip);
    EXPECT_EQ(job[rank].verdict(4)->reporters, 0b111u);
    EXPECT_EQ(job[rank].verdict(4)->detail, job[0].verdict(4)->detail);
    EXPECT_THAT(job[rank].verdict(4)->detail, HasSubstr("20.00 %"));
  }
  job.deliver_all();  // the same once more
  job.deliver_datagrams();
  for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(job[rank].verdict(4)->verdict, Verdict::skip);
}

TEST(AgreementDatagramTest, lost_datagrams__are_made_up_for_within_milliseconds) {
  AgreementJob job(2);
  for (Rank rank = 0; rank < 2; ++rank) job.report(rank, 0, 0);
  job.lose_datagrams();  // the report
  job.pass(2ms);
  job.deliver_datagrams();
  EXPECT_TRUE(job[1].verdict(0));
  for (Rank rank = 0; rank < 2; ++rank) job.report(rank, 1, 0);
  while (job.deliver(1, 0)) continue;
  ASSERT_TRUE(job[0].verdict(1));
  job.lose_datagrams();  // the verdict
  job.pass(2ms);
  job.deliver_datagrams();
  EXPECT_TRUE(job[1].verdict(1));
}

/// The carriers of what `machine` has sent since the last look.
std::vector<Agreement::Carrier> carriers(Agreement& machine) {
  std::vector<Agreement::Carrier> result;
  for (const auto& one : machine.take_outbox()) result.push_back(one.carrier);
  return result;
}

/// The times of repeats within `length` after kStart.
std::vector<Duration> repeats(Agreement& machine, Duration length) {
  std::vector<Duration> at;
  for (Time now = machine.next_deadline(); now <= kStart + length && !testing::Test::HasFailure();
       now = machine.next_deadline()) {
    machine.tick(now - 1ns);
    EXPECT_TRUE(carriers(machine).empty());
    machine.tick(now);
    EXPECT_EQ(carriers(machine), std::vector{Agreement::Carrier::datagram});
    at.push_back(now - kStart);
  }
  return at;
}

TEST(AgreementDatagramTest, report__is_repeated_by_datagram_until_the_verdict) {
  const Facts facts(2);
  Agreement rank(1, facts, {});
  rank.report(7, {}, 1s, kStart);
  EXPECT_EQ(carriers(rank), std::vector{Agreement::Carrier::both});
  EXPECT_EQ(repeats(rank, 170ms),
            (std::vector<Duration>{2ms, 6ms, 14ms, 30ms, 62ms, 112ms, 162ms}));
  AgreementMessage verdict;
  verdict.kind = AgreementMessage::Kind::verdict;
  verdict.step = 7;
  verdict.verdict = {Verdict::apply, 7, 0, 0b11, 0, ""};
  for (const auto by :
       {Agreement::Carrier::datagram, Agreement::Carrier::datagram, Agreement::Carrier::stream}) {
    rank.receive(0, verdict, by, kStart + 170ms);
    EXPECT_EQ(rank.verdict(7)->verdict, Verdict::apply);
    EXPECT_EQ(rank.next_deadline(), kNever);
    rank.tick(kStart + 10s);
    EXPECT_TRUE(carriers(rank).empty());
  }
}

TEST(AgreementDatagramTest, report__is_repeated_only_while_this_rank_waits) {
  Facts facts(2);
  Agreement rank(1, facts, {});
  rank.report(7, {}, 1s, kStart);
  rank.report(8, {}, 1s, kStart + 1ms);
  (void)rank.take_outbox();
  rank.give_up(7);
  EXPECT_EQ(rank.next_deadline(), kStart + 3ms);
  rank.give_up(8);
  EXPECT_EQ(rank.next_deadline(), kNever);
  rank.report(9, {}, 1s, kStart);
  (void)rank.take_outbox();
  facts.learn({.rank = 1, .standing = Standing::evicted, .evidence = {}, .next_numbers = {}});
  rank.facts_changed(kStart);
  EXPECT_EQ(rank.next_deadline(), kNever);
  rank.tick(kStart + 1s);
  EXPECT_TRUE(carriers(rank).empty());
  const Facts alone(1);
  Agreement only(0, alone, {});
  only.report(7, {}, 1s, kStart);
  EXPECT_EQ(only.next_deadline(), kNever);
  EXPECT_TRUE(carriers(only).empty());
}

TEST(AgreementDatagramTest,
     verdict_of_an_excluded_decider__by_datagram_is_ignored_after_the_yield) {
  AgreementJob job(3);
  for (Rank rank = 0; rank < 3; ++rank) job.report(rank, 0, rank == 0 ? 0.2 : 0.0);
  while (job.deliver(1, 0) || job.deliver(2, 0)) continue;
  ASSERT_EQ(job[0].verdict(0)->verdict, Verdict::skip);  // as datagrams, on their way
  job.kill(0, 2);
  job.deliver_all();
  for (const Rank rank : {Rank{1}, Rank{2}}) {
    ASSERT_TRUE(job[rank].verdict(0));
    EXPECT_EQ(job[rank].verdict(0)->decided_by, 1);
  }
  job.deliver_datagrams();
  for (const Rank rank : {Rank{1}, Rank{2}}) {
    EXPECT_EQ(job[rank].verdict(0)->decided_by, 1);
    EXPECT_EQ(job[rank].verdict(0)->verdict, Verdict::apply);
    EXPECT_EQ(job[rank].verdict(9), std::nullopt);  // no conflict
  }
}

TEST(AgreementDatagramTest, report_by_datagram__counts_only_at_the_decider) {
  Facts facts(3);
  Agreement rank(1, facts, {});
  AgreementMessage report;
  report.step = 4;
  report.patience_ms = 1000;
  rank.receive(2, report, Agreement::Carrier::datagram, kStart);  // overtakes the news of rank 0
  facts.learn({.rank = 0, .standing = Standing::dead, .evidence = {}, .next_numbers = {}});
  rank.facts_changed(kStart);
  AgreementMessage other;
  for (const auto kind : {AgreementMessage::Kind::yield, AgreementMessage::Kind::forgotten}) {
    other.kind = kind;
    other.step = 9;
    rank.receive(2, other, Agreement::Carrier::datagram, kStart);
  }
  rank.tick(kStart + 2s);
  EXPECT_FALSE(rank.verdict(4));
  other.kind = AgreementMessage::Kind::yield;
  other.step = 0;
  rank.receive(2, other, Agreement::Carrier::stream, kStart);
  rank.tick(kStart + 2s);
  EXPECT_FALSE(rank.verdict(4));
  rank.receive(2, report, Agreement::Carrier::datagram, kStart);
  rank.tick(kStart + 2s);
  EXPECT_TRUE(rank.verdict(4));
  EXPECT_EQ(carriers(rank), std::vector{Agreement::Carrier::both});
  for (const auto by : {Agreement::Carrier::datagram, Agreement::Carrier::stream}) {
    rank.receive(2, report, by, kStart);
    EXPECT_EQ(carriers(rank), std::vector{by});
  }
}

}  // namespace
}  // namespace tarpon::agreement_datagram_test
