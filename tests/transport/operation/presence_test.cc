// Presence: word boundaries, limits and run lengths of the bitmap of slots.
#include "transport/operation/message/presence.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "transport/random.h"

namespace tarpon::presence_test {
namespace {

using Runs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

constexpr std::uint32_t kNoLimit = 0xffffffff;

Runs missing(const Presence& presence, std::uint32_t limit = kNoLimit,
             std::uint32_t most_slots = kNoLimit, std::size_t room = 64) {
  std::vector<tarpon_range> out(room);
  const std::size_t count = presence.missing(limit, most_slots, out);
  Runs runs;
  for (std::size_t i = 0; i < count; ++i) runs.emplace_back(out[i].first, out[i].count);
  return runs;
}

Presence with(std::uint32_t slots, const std::vector<std::uint32_t>& present) {
  Presence presence;
  presence.reset(slots);
  for (const std::uint32_t slot : present) presence.insert(slot, 1);
  return presence;
}

TEST(PresenceTest, insert__runs_as_their_slots_one_by_one) {
  for (const std::uint32_t first : {0u, 1u, 63u, 64u, 100u}) {
    for (const std::uint32_t count : {1u, 2u, 63u, 64u, 65u, 130u}) {
      Presence at_once, one_by_one;
      at_once.reset(250);
      one_by_one.reset(250);
      at_once.insert(first, count);
      for (std::uint32_t i = 0; i < count; ++i) one_by_one.insert(first + i, 1);
      EXPECT_EQ(missing(at_once), missing(one_by_one)) << first << " " << count;
      EXPECT_EQ(at_once.count(), count);
      EXPECT_EQ(at_once.end(), first + count);
    }
  }
}

TEST(PresenceTest, reset__zero_slots_are_complete) {
  const Presence presence = with(0, {});
  EXPECT_TRUE(presence.complete());
  EXPECT_FALSE(presence.has_gap());
  EXPECT_EQ(presence.end(), 0u);
  EXPECT_EQ(missing(presence), Runs{});
}

TEST(PresenceTest, reset__forgets_what_was_there) {
  Presence presence = with(130, {0, 64, 129});
  presence.reset(130);
  EXPECT_EQ(presence.count(), 0u);
  EXPECT_EQ(presence.end(), 0u);
  EXPECT_EQ(missing(presence), (Runs{{0, 130}}));
  presence.reset(1);
  EXPECT_EQ(missing(presence), (Runs{{0, 1}}));
}

TEST(PresenceTest, insert__counts_and_finds_at_word_boundaries) {
  for (const std::uint32_t slots : {1u, 63u, 64u, 65u, 127u, 128u, 129u}) {
    Presence presence = with(slots, {});
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      EXPECT_FALSE(presence.contains(slot));
      EXPECT_FALSE(presence.complete());
      presence.insert(slot, 1);
      EXPECT_TRUE(presence.contains(slot));
      EXPECT_EQ(presence.count(), slot + 1);
      EXPECT_EQ(presence.end(), slot + 1);
      EXPECT_FALSE(presence.has_gap());
    }
    EXPECT_TRUE(presence.complete());
    EXPECT_EQ(missing(presence), Runs{});
  }
}

TEST(PresenceTest, has_gap__only_below_the_highest_slot) {
  EXPECT_TRUE(with(10, {1}).has_gap());
  EXPECT_FALSE(with(10, {0, 1}).has_gap());
  EXPECT_TRUE(with(200, {0, 64}).has_gap());
}

TEST(PresenceTest, missing__runs_cross_words) {
  EXPECT_EQ(missing(with(200, {62, 130})), (Runs{{0, 62}, {63, 67}, {131, 69}}));
  EXPECT_EQ(missing(with(128, {63, 64})), (Runs{{0, 63}, {65, 63}}));
  EXPECT_EQ(missing(with(65, {64})), (Runs{{0, 64}}));
  EXPECT_EQ(missing(with(65, {0})), (Runs{{1, 64}}));
}

TEST(PresenceTest, missing__nothing_at_or_above_the_limit) {
  const Presence presence = with(200, {10});
  EXPECT_EQ(missing(presence, 0), Runs{});
  EXPECT_EQ(missing(presence, 10), (Runs{{0, 10}}));
  EXPECT_EQ(missing(presence, 11), (Runs{{0, 10}}));
  EXPECT_EQ(missing(presence, 12), (Runs{{0, 10}, {11, 1}}));
  EXPECT_EQ(missing(presence, 64), (Runs{{0, 10}, {11, 53}}));
  EXPECT_EQ(missing(presence, 65), (Runs{{0, 10}, {11, 54}}));
  EXPECT_EQ(missing(presence, kNoLimit), (Runs{{0, 10}, {11, 189}}));
}

TEST(PresenceTest, missing__at_most_so_many_slots) {
  const Presence presence = with(200, {10});
  EXPECT_EQ(missing(presence, kNoLimit, 0), Runs{});
  EXPECT_EQ(missing(presence, kNoLimit, 9), (Runs{{0, 9}}));
  EXPECT_EQ(missing(presence, kNoLimit, 10), (Runs{{0, 10}}));
  EXPECT_EQ(missing(presence, kNoLimit, 11), (Runs{{0, 10}, {11, 1}}));
}

TEST(PresenceTest, missing__at_most_so_many_runs) {
  const Presence presence = with(100, {1, 3, 5});
  EXPECT_EQ(missing(presence, kNoLimit, kNoLimit, 0), Runs{});
  EXPECT_EQ(missing(presence, kNoLimit, kNoLimit, 1), (Runs{{0, 1}}));
  EXPECT_EQ(missing(presence, kNoLimit, kNoLimit, 3), (Runs{{0, 1}, {2, 1}, {4, 1}}));
}

// Seed 1, against a plain search.
TEST(PresenceTest, missing__agrees_with_a_plain_search) {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    const auto slots = static_cast<std::uint32_t>(random.below(200));
    const double density = static_cast<double>(random.below(101)) / 100;
    Presence presence = with(slots, {});
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      if (random.chance(density)) presence.insert(slot, 1);
    }
    const auto limit = static_cast<std::uint32_t>(random.below(220));
    Runs expected;
    for (std::uint32_t slot = 0; slot < std::min(limit, slots); ++slot) {
      if (presence.contains(slot)) continue;
      if (!expected.empty() && expected.back().first + expected.back().second == slot) {
        ++expected.back().second;
      } else {
        expected.emplace_back(slot, 1);
      }
    }
    ASSERT_EQ(missing(presence, limit, kNoLimit, 200), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace tarpon::presence_test
