// The order of calls in the memory of a host, and the sleep of its ranks.
#include "collectives/engine/hosts/host_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tools/simulation/simulated_hosts.h"

namespace tarpon::host_calls_test {
namespace {

using hosts::CallState;
using hosts::HostCalls;
using hosts::HostTag;
using hosts::Part;
using hosts::position;
using hosts::Wish;

constexpr std::array<Part, 3> kAll{Part::copy_in, Part::add_up, Part::copy_out};
constexpr std::uint32_t kRanks = 3;

struct FakeWork : hosts::HostWork {
  void move(Time) override {}
  bool can_move() const override { return moves; }
  std::optional<Wish> wish() const override { return wanted; }
  bool moves = false;
  std::optional<Wish> wanted;
};

class HostCallsTest : public testing::Test {
 protected:
  HostCallsTest() {
    host_.advance_to(Time(1s));
    for (Rank rank = 0; rank < kRanks; ++rank) {
      calls_.push_back(std::make_unique<HostCalls>(*host_.of(rank)));
      calls_.back()->add(work_[rank]);
      calls_.back()->tag(0).begin(0, {}, kAll);
    }
  }

  HostTag& tag(Rank rank) { return calls_[rank]->tag(0); }
  void publish(Rank rank, std::uint32_t steps) {
    tag(rank).publish(Part::copy_in, 0, steps);
    calls_[rank]->ring();
  }
  /// Whether a bell has rung for `rank` since the last time.
  bool rung(Rank rank) {
    const bool result = host_.rung_at(rank) != kNever;
    host_.heard(rank);
    return result;
  }

  SimulatedHosts host_{hosts::HostLayout::by(std::vector<int>(kRanks)), 4096};
  std::array<FakeWork, kRanks> work_;
  std::vector<std::unique_ptr<HostCalls>> calls_;
};

TEST_F(HostCallsTest, sleeper__is_rung_once_when_all_have_come_so_far) {
  work_[0].wanted = Wish{.tag = 0, .part = Part::copy_in, .position = position(0, 2)};
  tag(0).publish(Part::copy_in, 0, 2);
  ASSERT_TRUE(calls_[0]->fall_asleep());
  publish(1, 1);
  publish(2, 2);
  EXPECT_FALSE(rung(0));
  publish(1, 2);
  EXPECT_TRUE(rung(0));
  publish(1, 3);
  EXPECT_FALSE(rung(0));  // it has been rung for
}

TEST_F(HostCallsTest, sleeper_without_one_wish__is_rung_for_anything) {
  ASSERT_TRUE(calls_[0]->fall_asleep());
  publish(1, 1);
  EXPECT_TRUE(rung(0));
  ASSERT_TRUE(calls_[0]->fall_asleep());
  calls_[0]->wake();
  publish(1, 2);
  EXPECT_FALSE(rung(0));  // it is awake
}

TEST_F(HostCallsTest, two_calls__are_not_one_wish) {
  FakeWork other;
  calls_[0]->add(other);
  work_[0].wanted = Wish{.tag = 0, .part = Part::copy_in, .position = position(0, 9)};
  ASSERT_TRUE(calls_[0]->fall_asleep());
  publish(2, 1);
  EXPECT_TRUE(rung(0));
  calls_[0]->remove(other);
}

TEST_F(HostCallsTest, rank_that_can_move__does_not_sleep) {
  work_[0].moves = true;
  EXPECT_FALSE(calls_[0]->fall_asleep());
  publish(1, 1);
  EXPECT_FALSE(rung(0));
}

TEST_F(HostCallsTest, end_of_a_call__wakes_all_whatever_they_wait_for) {
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    work_[rank].wanted = Wish{.tag = 0, .part = Part::add_up, .position = position(0, 1)};
    ASSERT_TRUE(calls_[rank]->fall_asleep());
  }
  tag(2).end(0, {.reason = 7, .blamed = 4});
  calls_[2]->ring(true);
  EXPECT_TRUE(rung(0) && rung(1));
  const HostTag::Told told = tag(0).told(2, 0);
  EXPECT_EQ(told.state, CallState::given_up);
  EXPECT_EQ(told.reason, 7u);
  EXPECT_EQ(told.blamed, 4u);
}

TEST_F(HostCallsTest, call_that_a_rank_does_not_begin__ends_at_the_others) {
  ASSERT_TRUE(calls_[0]->fall_asleep());
  calls_[2]->pass_over(0, 1, {.reason = 5, .blamed = 4});
  EXPECT_TRUE(rung(0));
  const HostTag::Told told = tag(0).told(2, 1);
  EXPECT_EQ(told.state, CallState::given_up);
  EXPECT_EQ(told.reason, 5u);
  EXPECT_EQ(told.blamed, 4u);
  EXPECT_EQ(tag(0).told(2, 0).state, CallState::begun);
  EXPECT_NE(tag(0).lacking(Part::copy_in, position(0, 1)) & 4, 0u);  // call 0 goes on
  tag(2).leave(Part::copy_in, 0);
  EXPECT_EQ(tag(0).lacking(Part::copy_in, position(2, 0)) & 4, 0u);
}

TEST_F(HostCallsTest, calls__do_each_part_in_their_order) {
  HostTag& own = tag(0);
  own.begin(1, {}, kAll);
  EXPECT_TRUE(own.is_turn(Part::copy_in, 0));
  EXPECT_FALSE(own.is_turn(Part::copy_in, 1));
  own.leave(Part::copy_in, 0);
  EXPECT_TRUE(own.is_turn(Part::copy_in, 1));
  EXPECT_FALSE(own.is_turn(Part::add_up, 1));
}

TEST_F(HostCallsTest, call_that_ends_before_its_turn__is_passed_over) {
  HostTag& own = tag(0);
  own.begin(1, {}, kAll);
  own.begin(2, {}, kAll);
  own.end(1, {});
  EXPECT_NE(own.lacking(Part::copy_out, position(0, 1)) & 1, 0u);  // call 0 still has its turn
  own.leave(Part::copy_out, 0);
  EXPECT_EQ(own.lacking(Part::copy_out, position(2, 0)) & 1, 0u);
}

TEST_F(HostCallsTest, place__is_free_when_all_are_done_with_it) {
  HostTag& own = tag(0);
  const std::uint32_t place = own.place(0, 1);
  EXPECT_EQ(place, own.place(1, 0));
  constexpr auto kInputs = HostTag::Area::inputs, kResult = HostTag::Area::result;
  EXPECT_TRUE(own.is_free(kInputs, place));
  own.use(kInputs, place, Part::copy_out, 0, 1);
  EXPECT_TRUE(own.is_free(kResult, place));
  for (Rank rank = 0; rank < kRanks; ++rank) {
    EXPECT_FALSE(own.is_free(kInputs, place));
    tag(rank).publish(Part::copy_out, 0, rank == 1 ? 2 : 1);
  }
  for (const Rank rank : {Rank{0}, Rank{2}}) tag(rank).leave(Part::copy_out, 0);
  EXPECT_TRUE(own.is_free(kInputs, place));
}

TEST_F(HostCallsTest, rank_that_has_gone_on__no_longer_tells_of_a_call) {
  for (std::uint32_t number = 1; number <= 32; ++number) tag(1).begin(number, {}, {});
  EXPECT_EQ(tag(0).told(1, 0).state, CallState::given_up);
  EXPECT_EQ(tag(0).told(1, 0).blamed, 2u);
  EXPECT_EQ(tag(0).told(1, 32).state, CallState::begun);
  EXPECT_EQ(tag(0).told(1, 33).state, CallState::none);
  EXPECT_EQ(tag(0).told(2, 1).state, CallState::none);
}

}  // namespace
}  // namespace tarpon::host_calls_test
