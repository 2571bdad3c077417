#include "transport/tags/tag_history.h"

#include <gtest/gtest.h>

namespace tarpon::tag_history_test {
namespace {

KeptResult result(std::uint32_t number, std::size_t bytes) {
  KeptResult kept;
  kept.number = number;
  kept.data = std::make_unique<Retained>();
  kept.data->bytes.resize(bytes);
  return kept;
}

TEST(TagHistory, activate__numbers_go_on_where_they_are_remembered) {
  TagHistory tags({.world_size = 3});
  EXPECT_EQ(tags.find(7), nullptr);
  EXPECT_FALSE(tags.remembers(7));
  TagState& tag_state = tags.activate(7);
  EXPECT_EQ(&tags.activate(7), &tag_state);
  tag_state.next_number = 5;
  tags.forget(tag_state);
  EXPECT_EQ(tags.find(7), nullptr);
  EXPECT_TRUE(tags.remembers(7));
  EXPECT_EQ(tags.next_number(7), 5u);
  EXPECT_EQ(tags.lowest_open(7), 5u);
  const TagState& again = tags.activate(7);
  EXPECT_EQ(again.next_number, 5u);
  EXPECT_EQ(again.closed_below_of, (std::vector<std::uint32_t>{5, 5, 5}));
  EXPECT_TRUE(again.past.empty());
}

TEST(TagHistory, has_reached__numbers_wrap) {
  TagHistory tags({.world_size = 2});
  TagState& tag_state = tags.activate(7);
  tag_state.next_number = 2;
  EXPECT_TRUE(tag_state.has_reached(2));
  EXPECT_FALSE(tag_state.has_reached(3));
  EXPECT_FALSE(tag_state.has_reached(0xffffffff)) << "never was";
  tag_state.wrapped = true;
  for (const std::uint32_t number : {0xfffffffeu, 0xffffffffu, 0u, 1u, 2u}) {
    EXPECT_TRUE(tag_state.has_reached(number)) << number;
  }
  EXPECT_FALSE(tag_state.has_reached(3));
}

TEST(TagHistory, forget__the_oldest_number_goes_first) {
  TagHistory tags({.world_size = 2, .remembered_tags = 3});
  const auto use = [&](std::uint32_t tag) {
    TagState& tag_state = tags.activate(tag);
    ++tag_state.next_number;
    tags.forget(tag_state);
  };
  for (const std::uint32_t tag : {1u, 2u, 3u, 1u, 4u})
    use(tag);  // 1 was used again: 2 is the oldest
  EXPECT_FALSE(tags.remembers(2));
  EXPECT_EQ(tags.next_number(2), 0u);
  EXPECT_EQ(tags.next_number(1), 2u);
  EXPECT_EQ(tags.next_number(3), 1u);
  EXPECT_EQ(tags.next_number(4), 1u);
}

TEST(TagHistory, forget__one_tag_used_again_and_again_pushes_no_other_out) {
  TagHistory tags({.world_size = 2, .remembered_tags = 4});
  TagState& first = tags.activate(1);
  first.next_number = 9;
  tags.forget(first);
  for (int i = 0; i < 1000; ++i) {
    TagState& tag_state = tags.activate(2);
    ++tag_state.next_number;
    tags.forget(tag_state);
  }
  EXPECT_EQ(tags.next_number(1), 9u);
  EXPECT_EQ(tags.next_number(2), 1000u);
}

TEST(TagHistory, active__holds_each_active_tag_once) {
  TagHistory tags({.world_size = 2});
  for (std::uint32_t tag = 0; tag < 200; ++tag) tags.activate(tag);
  for (std::uint32_t tag = 0; tag < 200; tag += 2) tags.forget(*tags.find(tag));
  EXPECT_EQ(tags.active().size(), 100u);
  for (const auto& tag_state : tags.active()) {
    EXPECT_EQ(tag_state->tag % 2, 1u);
    EXPECT_EQ(tags.find(tag_state->tag), tag_state.get());
  }
}

TEST(TagHistory, retain__limits_bytes_and_entries_over_all_tags) {
  constexpr std::uint64_t kEach = TagHistory::kBytesPerResult;
  TagHistory tags({.world_size = 2, .retain_bytes = 2 * kEach + 100, .retain_entries = 3});
  EXPECT_TRUE(tags.may_retain(1'000'000)) << "one result is always retained";
  tags.retain(tags.activate(1), result(0, 60));
  EXPECT_TRUE(tags.may_retain(40));
  EXPECT_FALSE(tags.may_retain(41));
  tags.retain(tags.activate(2), result(0, 40));
  EXPECT_FALSE(tags.may_retain(0)) << "the third one's bookkeeping";
  tags.retain(tags.activate(1), result(1, 10));
  EXPECT_EQ(tags.retained_bytes(), 3 * kEach + 110);
  tags.release(*tags.find(1), 1);
  EXPECT_EQ(tags.retained_bytes(), 2 * kEach + 50);
  EXPECT_EQ(tags.retained_entries(), 2u);
  tags.find(1)->next_number = 2;
  tags.forget(*tags.find(1));
  EXPECT_EQ(tags.retained_entries(), 1u);
}

TEST(TagHistory, retain__limits_entries) {
  TagHistory tags({.world_size = 2, .retain_bytes = 1 << 20, .retain_entries = 3});
  for (std::uint32_t tag = 0; tag < 3; ++tag) {
    EXPECT_TRUE(tags.may_retain(1));
    tags.retain(tags.activate(tag), result(0, 1));
  }
  EXPECT_FALSE(tags.may_retain(1));
}

TEST(TagHistory, retain__counts_contributor_masks) {
  TagHistory tags({.world_size = 2, .retain_bytes = 1 << 20});
  KeptResult kept = result(0, 100);
  kept.data->contributors.resize(3);
  tags.retain(tags.activate(0), std::move(kept));
  EXPECT_EQ(tags.retained_bytes(), TagHistory::kBytesPerResult + 100 + 3 * 8);
  tags.release(*tags.find(0), 1);
  EXPECT_EQ(tags.retained_bytes(), 0u);
}

TEST(TagHistory, find_kept__also_where_operations_closed_out_of_order) {
  TagHistory tags({.world_size = 2, .retain_bytes = 1 << 20});
  TagState& tag_state = tags.activate(1);
  for (const std::uint32_t number : {0xfffffffeu, 1u, 0u, 0xffffffffu, 4u}) {
    tags.retain(tag_state, result(number, number & 0xff));
  }
  for (const std::uint32_t number : {0xfffffffeu, 0xffffffffu, 0u, 1u, 4u}) {
    const KeptResult* const kept = tags.find_kept(tag_state, number);
    ASSERT_NE(kept, nullptr) << number;
    EXPECT_EQ(kept->data->bytes.size(), number & 0xff);
  }
  EXPECT_EQ(tags.find_kept(tag_state, 2), nullptr);
  tags.release(tag_state, 1);
  EXPECT_EQ(tags.find_kept(tag_state, 0), nullptr);
  EXPECT_NE(tags.find_kept(tag_state, 1), nullptr);
}

TEST(TagState, remember__keeps_the_latest) {
  TagState tag_state;
  for (std::uint32_t number = 0; number < 40; ++number) {
    PastOperation one;
    one.number = number;
    one.aborted = number % 2 != 0;
    tag_state.remember(one, 16);
  }
  EXPECT_EQ(tag_state.find_past(23), nullptr);
  for (std::uint32_t number = 24; number < 40; ++number) {
    ASSERT_NE(tag_state.find_past(number), nullptr) << number;
    EXPECT_EQ(tag_state.ended_by_abort(number), number % 2 != 0);
  }
}

TEST(TagState, remember_abort__calls_given_up_at_once_for_several_reasons_all_stay) {
  TagState tag_state;
  const auto reason_of = [](std::uint32_t number) {
    return number % 40 == 9 ? TARPON_ABORT_ARGUMENT : TARPON_ABORT_GIVEN_UP;
  };
  for (std::uint32_t number = 0; number < 100; ++number) {
    PastOperation past;
    past.aborted = true;
    past.number = number;
    past.reason = reason_of(number);
    tag_state.remember(past, 16);
    tag_state.remember_abort(number, reason_of(number), 0b10);
  }
  for (std::uint32_t number = 0; number < 100; ++number) {
    ASSERT_TRUE(tag_state.ended_by_abort(number)) << number;
    const auto* const run = tag_state.find_aborted(number);
    EXPECT_EQ(run->reason, reason_of(number)) << number;
    EXPECT_EQ(run->ranks, 0b10u);
  }
  EXPECT_FALSE(tag_state.ended_by_abort(100));
}

TEST(TagState, remember_abort__of_many_runs_the_oldest_become_one) {
  TagState tag_state;
  for (std::uint32_t number = 0; number < 1000; ++number) {
    tag_state.remember_abort(number, TARPON_ABORT_ARGUMENT + number % 2, 1);
  }
  EXPECT_EQ(tag_state.aborted.size(), TagState::kAbortedRuns);
  EXPECT_TRUE(tag_state.ended_by_abort(0));
  EXPECT_EQ(tag_state.find_aborted(998)->reason, std::uint32_t{TARPON_ABORT_ARGUMENT});
  // What lies apart is no run: the oldest goes.
  for (std::uint32_t number = 2000; number < 2100; number += 2) {
    tag_state.remember_abort(number, TARPON_ABORT_ARGUMENT, 1);
  }
  EXPECT_EQ(tag_state.aborted.size(), TagState::kAbortedRuns);
  EXPECT_FALSE(tag_state.ended_by_abort(2001));
  EXPECT_FALSE(tag_state.ended_by_abort(0));
  EXPECT_TRUE(tag_state.ended_by_abort(2098));
}

}  // namespace
}  // namespace tarpon::tag_history_test
