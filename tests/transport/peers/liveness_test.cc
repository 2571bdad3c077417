#include "transport/peers/liveness.h"

#include <gtest/gtest.h>

namespace tarpon::liveness_test {
namespace {

constexpr Duration kAskEvery = 50ms;

/// Checks every 50 ms from `from` on, before `to`; returns all ranks that fell silent.
std::uint64_t run(Liveness& liveness, Time from, Time to, std::uint64_t lacked,
                  const std::vector<Time>& heard) {
  std::uint64_t silent = 0;
  for (Time now = from; now < to; now += kAskEvery) {
    silent |= liveness.check(now, lacked, heard).silent;
  }
  return silent;
}

TEST(Liveness, check__a_rank_that_is_not_lacked_is_never_silent) {
  Liveness liveness(3, 300ms);
  EXPECT_EQ(run(liveness, Time(1s), Time(3s), 0b010, {Time(1s), Time(3s), Time{}}), 0u);
}

TEST(Liveness, check__asks_after_100_ms_and_calls_silent_after_300) {
  Liveness liveness(2, 300ms);
  const std::vector<Time> heard{Time(1s), Time(1s)};
  liveness.watch(Time(1s));
  EXPECT_EQ(liveness.check(Time(1s), 0b10, heard).ask, 0u);
  EXPECT_EQ(liveness.check(Time(1s) + 50ms, 0b10, heard).ask, 0u);
  EXPECT_EQ(liveness.check(Time(1s) + 100ms, 0b10, heard).ask, 0b10u);
  EXPECT_EQ(run(liveness, Time(1s) + 150ms, Time(1s) + 300ms, 0b10, heard), 0u);
  const auto findings = liveness.check(Time(1s) + 300ms, 0b10, heard);
  EXPECT_EQ(findings.silent, 0b10u);
  EXPECT_EQ(findings.ask, 0b10u) << "it is asked on";
}

TEST(Liveness, check__a_shorter_silence_is_asked_about_sooner) {
  Liveness liveness(2, 60ms);
  const std::vector<Time> heard{Time(1s), Time(1s)};
  liveness.watch(Time(1s));
  EXPECT_EQ(liveness.next(), Time(1s) + 10ms);
  EXPECT_EQ(liveness.check(Time(1s) + 10ms, 0b10, heard).ask, 0u);
  EXPECT_EQ(liveness.check(Time(1s) + 20ms, 0b10, heard).ask, 0b10u);
  for (const Duration at : {30ms, 40ms, 50ms}) {
    EXPECT_EQ(liveness.check(Time(1s) + at, 0b10, heard).silent, 0u);
  }
  EXPECT_EQ(liveness.check(Time(1s) + 60ms, 0b10, heard).silent, 0b10u);
}

TEST(Liveness, check__an_answer_begins_the_time_anew) {
  Liveness liveness(2, 300ms);
  std::vector<Time> heard{Time{}, Time(1s)};
  EXPECT_EQ(run(liveness, Time(1s), Time(1s) + 290ms, 0b10, heard), 0u);
  heard[1] = Time(1s) + 280ms;
  EXPECT_EQ(run(liveness, Time(1s) + 300ms, Time(1s) + 580ms, 0b10, heard), 0u);
  EXPECT_EQ(run(liveness, Time(1s) + 580ms, Time(1s) + 700ms, 0b10, heard), 0b10u);
}

TEST(Liveness, check__time_in_which_this_rank_did_not_run_does_not_count) {
  Liveness liveness(2, 300ms);
  const std::vector<Time> heard{Time{}, Time(1s)};
  EXPECT_EQ(run(liveness, Time(1s), Time(1s) + 200ms, 0b10, heard), 0u);
  // It was stopped for 3 s, and then has to ask first.
  EXPECT_EQ(run(liveness, Time(4s), Time(4s) + 300ms, 0b10, heard), 0u);
  EXPECT_EQ(run(liveness, Time(4s) + 300ms, Time(4s) + 400ms, 0b10, heard), 0b10u);
}

TEST(Liveness, next__is_never_when_nobody_is_lacked) {
  Liveness liveness(2, 300ms);
  EXPECT_EQ(liveness.next(), kNever);
  liveness.watch(Time(1s));
  EXPECT_EQ(liveness.next(), Time(1s) + kAskEvery);
  (void)liveness.check(Time(2s), 0b10, {Time{}, Time{}});
  EXPECT_EQ(liveness.next(), Time(2s) + kAskEvery);
  (void)liveness.check(Time(3s), 0, {Time{}, Time{}});
  EXPECT_EQ(liveness.next(), kNever);
}

}  // namespace
}  // namespace tarpon::liveness_test
