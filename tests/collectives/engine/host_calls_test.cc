// The order of calls in the memory of a host, and the sleep of its ranks.
#include "collectives/engine/hosts/host_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "tools/simulation/simulated_hosts.h"

namespace tarpon::host_calls_test {
namespace {

using hosts::CallState;
using hosts::HostCalls;
using hosts::HostLine;
using hosts::Part;
using hosts::position;
using hosts::Wish;

constexpr std::array<Part, 3> kAll{Part::copy_in, Part::add_up, Part::copy_out};
constexpr std::uint32_t kRanks = 3;

struct FakeWork : hosts::HostWork {
  hosts::CallName name() const override { return called; }
  std::uint64_t lacks() const override { return lacked; }
  bool has_line() const override { return seated; }
  std::uint64_t lacked = 0;
  bool seated = false;
  void move(Time) override {}
  bool can_move() const override { return moves; }
  std::optional<Wish> wish() const override { return wanted; }
  hosts::CallName called;
  bool moves = false;
  std::optional<Wish> wanted;
};

class HostCallsTest : public testing::Test {
 protected:
  HostCallsTest() {
    host_.advance_to(Time(1s));
    for (Rank rank = 0; rank < kRanks; ++rank) {
      calls_.push_back(std::make_unique<HostCalls>());
      calls_.back()->share(*host_.of(rank));
      open_[rank].emplace(*calls_.back(), work_[rank]);
      line(rank).begin(0, {}, kAll);
    }
  }

  HostLine& line(Rank rank) { return *calls_[rank]->assign({.tag = 0, .number = 0})->line; }
  void publish(Rank rank, std::uint32_t steps) {
    line(rank).publish(Part::copy_in, 0, steps);
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
  std::array<std::optional<HostCalls::OpenCall>, kRanks> open_;
};

TEST_F(HostCallsTest, sleeper__is_rung_once_when_all_have_come_so_far) {
  work_[0].wanted = Wish{.line = 0, .part = Part::copy_in, .position = position(0, 2)};
  line(0).publish(Part::copy_in, 0, 2);
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
  const HostCalls::OpenCall open(*calls_[0], other);
  work_[0].wanted = Wish{.line = 0, .part = Part::copy_in, .position = position(0, 9)};
  ASSERT_TRUE(calls_[0]->fall_asleep());
  publish(2, 1);
  EXPECT_TRUE(rung(0));
}

TEST_F(HostCallsTest, rank_that_can_move__does_not_sleep) {
  work_[0].moves = true;
  EXPECT_FALSE(calls_[0]->fall_asleep());
  publish(1, 1);
  EXPECT_FALSE(rung(0));
}

TEST_F(HostCallsTest, end_of_a_call__wakes_all_whatever_they_wait_for) {
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    work_[rank].wanted = Wish{.line = 0, .part = Part::add_up, .position = position(0, 1)};
    ASSERT_TRUE(calls_[rank]->fall_asleep());
  }
  line(2).end(0, {.reason = 7, .blamed = 4});
  calls_[2]->ring(true);
  EXPECT_TRUE(rung(0) && rung(1));
  const HostLine::Told told = line(0).told(2, 0);
  EXPECT_EQ(told.state, CallState::given_up);
  EXPECT_EQ(told.reason, 7u);
  EXPECT_EQ(told.blamed, 4u);
}

TEST_F(HostCallsTest, call_that_a_rank_does_not_begin__ends_at_the_others) {
  ASSERT_TRUE(calls_[0]->fall_asleep());
  calls_[2]->pass_over({0, 1}, {.reason = 5, .blamed = 4});
  EXPECT_TRUE(rung(0));
  const HostLine::Told told = line(0).told(2, 1);
  EXPECT_EQ(told.state, CallState::given_up);
  EXPECT_EQ(told.reason, 5u);
  EXPECT_EQ(told.blamed, 4u);
  EXPECT_EQ(line(0).told(2, 0).state, CallState::begun);
  EXPECT_NE(line(0).lacking(Part::copy_in, position(0, 1)) & 4, 0u);  // call 0 goes on
  line(2).leave(Part::copy_in, 0);
  EXPECT_EQ(line(0).lacking(Part::copy_in, position(2, 0)) & 4, 0u);
}

TEST_F(HostCallsTest, calls__do_each_part_in_their_order) {
  HostLine& own = line(0);
  own.begin(1, {}, kAll);
  EXPECT_TRUE(own.is_turn(Part::copy_in, 0));
  EXPECT_FALSE(own.is_turn(Part::copy_in, 1));
  own.leave(Part::copy_in, 0);
  EXPECT_TRUE(own.is_turn(Part::copy_in, 1));
  EXPECT_FALSE(own.is_turn(Part::add_up, 1));
}

TEST_F(HostCallsTest, call_that_ends_before_its_turn__is_passed_over) {
  HostLine& own = line(0);
  own.begin(1, {}, kAll);
  own.begin(2, {}, kAll);
  own.end(1, {});
  EXPECT_NE(own.lacking(Part::copy_out, position(0, 1)) & 1, 0u);  // call 0 still has its turn
  own.leave(Part::copy_out, 0);
  EXPECT_EQ(own.lacking(Part::copy_out, position(2, 0)) & 1, 0u);
}

TEST_F(HostCallsTest, place__is_free_when_all_are_done_with_it) {
  HostLine& own = line(0);
  const std::uint32_t place = own.place(0, 1);
  EXPECT_EQ(place, own.place(1, 0));
  constexpr auto kInputs = HostLine::Area::inputs, kResult = HostLine::Area::result;
  EXPECT_TRUE(own.is_free(kInputs, place));
  own.use(kInputs, place, {.part = Part::copy_out, .number = 0, .step = 1});
  EXPECT_TRUE(own.is_free(kResult, place));
  for (Rank rank = 0; rank < kRanks; ++rank) {
    EXPECT_FALSE(own.is_free(kInputs, place));
    line(rank).publish(Part::copy_out, 0, rank == 1 ? 2 : 1);
  }
  for (const Rank rank : {Rank{0}, Rank{2}}) line(rank).leave(Part::copy_out, 0);
  EXPECT_TRUE(own.is_free(kInputs, place));
}

TEST_F(HostCallsTest, rank_that_is_left_out__holds_no_place_of_a_bounded_call) {
  HostLine& own = line(0);
  constexpr auto kInputs = HostLine::Area::inputs;
  own.use(kInputs, 0, {.part = Part::copy_out, .number = 4, .step = 0, .bounded = true});
  own.use(kInputs, 1, {.part = Part::copy_out, .number = 4, .step = 1});
  for (Rank rank = 0; rank < kRanks; ++rank) {
    if (rank != 1) line(rank).publish(Part::copy_out, 5, 0);
  }
  EXPECT_EQ(own.users(kInputs, 0), 2u);
  line(2).leave_out(2, 3);  // of earlier calls
  EXPECT_EQ(own.left_out(3), 2u);
  EXPECT_EQ(own.left_out(4), 0u);
  EXPECT_EQ(own.users(kInputs, 0), 2u);
  line(2).leave_out(2, 6);
  for (Rank rank = 0; rank < kRanks; ++rank) EXPECT_EQ(line(rank).left_out(4), 2u);
  EXPECT_TRUE(own.is_free(kInputs, 0));
  EXPECT_FALSE(own.is_free(kInputs, 1));  // of an exact call
  line(2).leave_out(2, 5);                // which says no more
  EXPECT_EQ(own.left_out(6), 2u);
  EXPECT_EQ(own.left_out(7), 0u);
}

TEST_F(HostCallsTest, marks__are_told_until_another_call_has_the_entry) {
  line(1).begin(3, {}, {}, {.heard = false, .ranks = 2});
  EXPECT_EQ(line(0).marks(1, 3).ranks, 2u);
  line(1).mark(3, {.heard = true, .ranks = 6});
  EXPECT_TRUE(line(0).marks(1, 3).heard);
  EXPECT_EQ(line(0).marks(1, 3).ranks, 6u);
  line(1).mark(2, {.heard = true, .ranks = 7});  // not begun here
  EXPECT_FALSE(line(0).marks(1, 2).any());
  line(1).begin(35, {}, {});
  EXPECT_FALSE(line(0).marks(1, 3).any());
  EXPECT_FALSE(line(0).marks(1, 35).any());
}

TEST_F(HostCallsTest, rank_that_has_gone_on__no_longer_tells_of_a_call) {
  for (std::uint32_t number = 1; number <= 32; ++number) line(1).begin(number, {}, {});
  EXPECT_EQ(line(0).told(1, 0).state, CallState::given_up);
  EXPECT_EQ(line(0).told(1, 0).blamed, 2u);
  EXPECT_EQ(line(0).told(1, 32).state, CallState::begun);
  EXPECT_EQ(line(0).told(1, 33).state, CallState::none);
  EXPECT_EQ(line(0).told(2, 1).state, CallState::none);
}

// -- common lines --------------------------------------------------------------------------------

constexpr hosts::CallName kCall{.tag = 1000, .number = 3}, kOther{.tag = 2000, .number = 0};
constexpr HostLine::Ending kEnding{.reason = 5, .blamed = 4};

class CommonLinesTest : public HostCallsTest {
 protected:
  using Seat = hosts::Assignment;

  /// Rank 0 gives all lines to calls of tags from 5000 on.
  std::vector<Seat> take_all() {
    std::vector<Seat> seats;
    while (const auto seat = calls_[0]->assign({.tag = tag_, .number = 0})) {
      seat->line->begin(seat->number, {}, kAll);
      seats.push_back(*seat);
      ++tag_;
    }
    return seats;
  }
  void leave(const Seat& seat) {
    for (const Part part : kAll) seat.line->leave(part, seat.number);
  }
  void settle(Rank rank, bool begun = false) {
    calls_[rank]->tell_passed([begun](const hosts::CallName&) { return begun; });
  }

  std::uint32_t tag_ = 5000;
};

TEST_F(CommonLinesTest, lowest_rank__binds_and_the_others_find_the_line) {
  EXPECT_FALSE(calls_[2]->can_assign(kCall));
  EXPECT_EQ(calls_[2]->lacked_for_a_line(), 1u);
  const auto lowest = calls_[0]->assign(kCall);
  ASSERT_TRUE(lowest);
  EXPECT_GE(lowest->line->index(), hosts::kOwnLines);
  EXPECT_FALSE(calls_[2]->can_assign(kOther));
  EXPECT_TRUE(calls_[2]->can_assign(kCall));
  const auto other = calls_[2]->assign(kCall);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->line->index(), lowest->line->index());
  EXPECT_EQ(other->number, lowest->number);
  EXPECT_FALSE(calls_[2]->can_assign(kCall));  // it has been taken
}

TEST_F(CommonLinesTest, line__is_given_away_when_all_ranks_are_through) {
  const std::vector<Seat> seats = take_all();
  EXPECT_EQ(seats.size(), hosts::kCommonLines);
  leave(seats[4]);
  for (const Rank rank : {Rank{1}, Rank{2}}) {
    EXPECT_FALSE(calls_[0]->can_assign(kCall));
    const auto seat = calls_[rank]->assign({.tag = 5004, .number = 0});
    ASSERT_TRUE(seat);
    seat->line->begin(seat->number, {}, kAll);
    EXPECT_FALSE(calls_[0]->can_assign(kCall));
    leave(*seat);
  }
  const auto next = calls_[0]->assign(kCall);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->line->index(), seats[4].line->index());
  EXPECT_EQ(next->number, 1u);
}

TEST_F(CommonLinesTest, rank_that_has_ended_a_call__passes_it_over_once_it_has_a_line) {
  open_[2].reset();
  calls_[2]->pass_over(kCall, kEnding);
  settle(2);
  ASSERT_TRUE(calls_[2]->fall_asleep());
  const auto lowest = calls_[0]->assign(kCall);
  ASSERT_TRUE(lowest);
  lowest->line->begin(lowest->number, {}, kAll);
  calls_[0]->ring();
  EXPECT_TRUE(rung(2));  // although no call is open there
  EXPECT_TRUE(calls_[2]->can_move());
  settle(2);
  const HostLine::Told told = lowest->line->told(2, lowest->number);
  EXPECT_EQ(told.state, CallState::given_up);
  EXPECT_EQ(told.reason, 5u);
  EXPECT_EQ(told.blamed, 4u);
  EXPECT_EQ(lowest->line->lacking(Part::copy_out, position(lowest->number + 1, 0)) & 4, 0u);
}

TEST_F(CommonLinesTest, lowest_rank_that_ends_a_call__waits_for_a_line_to_tell_so) {
  const std::vector<Seat> seats = take_all();
  calls_[0]->pass_over(kCall, kEnding);
  settle(0);
  EXPECT_FALSE(calls_[1]->can_assign(kCall));
  leave(seats[0]);
  for (const Rank rank : {Rank{1}, Rank{2}}) {
    calls_[rank]->pass_over({.tag = 5000, .number = 0}, kEnding);
  }
  settle(0);
  const auto seat = calls_[1]->assign(kCall);
  ASSERT_TRUE(seat);
  EXPECT_EQ(seat->line->told(0, seat->number).reason, 5u);
}

TEST_F(CommonLinesTest, rank_that_ran_a_call_without_the_line__passes_it_over) {
  const auto lowest = calls_[0]->assign(kCall);
  ASSERT_TRUE(lowest);
  const auto state = [&] { return lowest->line->told(1, lowest->number).state; };
  settle(1);
  EXPECT_EQ(state(), CallState::none);  // it has not begun
  work_[1].called = kCall;
  settle(1, true);
  EXPECT_EQ(state(), CallState::none);  // it has, and takes its seat later
  work_[1].called = kOther;
  settle(1, true);
  EXPECT_EQ(state(), CallState::over);
}

TEST_F(CommonLinesTest, lines_that_are_all_in_use__are_held_up_by_the_ranks_that_calls_lack) {
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    work_[rank].lacked = 4;
    EXPECT_EQ(calls_[rank]->lacked_for_a_line(), rank == 0 ? 0u : 1u);
  }
  take_all();
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    EXPECT_EQ(calls_[rank]->lacked_for_a_line(), rank == 0 ? 0u : 1u);  // it has no line
    work_[rank].seated = true;
    EXPECT_EQ(calls_[rank]->lacked_for_a_line(), 4u);
  }
}

TEST_F(CommonLinesTest, garbage_in_a_binding__is_no_seat) {
  hosts::Binding& binding = host_.of(1)->memory.binding(0);
  host_.of(1)->memory.used_lines().store(~0u);
  binding.call.store(std::uint64_t{kCall.tag} << 32 | kCall.number);
  for (const std::uint32_t count : {0u, 2u, 77u, ~0u}) {
    binding.count.store(count);
    EXPECT_FALSE(calls_[1]->can_assign(kCall)) << count;
  }
  binding.call.store(0);  // of a tag that has a line of its own
  binding.count.store(1);
  settle(1, true);
  EXPECT_FALSE(calls_[1]->take_moved());
  EXPECT_NE(line(1).lacking(Part::copy_in, position(0, 1)) & 2, 0u);
}

/// The lowest rank gives no line away twice, whatever the memory says.
TEST_F(CommonLinesTest, garbage_in_the_number_of_lines__does_not_mislead_the_lowest_rank) {
  const auto first = calls_[0]->assign(kCall);
  ASSERT_TRUE(first);
  first->line->begin(first->number, {}, kAll);
  host_.of(1)->memory.used_lines().store(0);
  const auto second = calls_[0]->assign(kOther);
  ASSERT_TRUE(second);
  EXPECT_NE(second->line->index(), first->line->index());
}

TEST_F(HostCallsTest, late_end_of_a_call__leaves_the_entry_of_a_later_one) {
  for (const Part part : kAll) line(1).leave(part, 0);
  line(1).begin(32, {}, kAll);
  line(1).end(0, kEnding);
  EXPECT_EQ(line(0).told(1, 32).state, CallState::begun);
}

}  // namespace
}  // namespace tarpon::host_calls_test
