// SlotLengths: messages of one range and of several.
#include "transport/operation/message/slot_lengths.h"

#include <gtest/gtest.h>

#include <vector>

namespace tarpon::slot_lengths_test {
namespace {

constexpr std::uint32_t kSlotBytes = 100;

struct Case {
  std::vector<std::uint64_t> ranges;
  std::vector<std::uint32_t> lengths;
};

const std::vector<Case> kCases{
    {{0}, {}},
    {{1}, {1}},
    {{100}, {100}},
    {{250}, {100, 100, 50}},
    {{100, 100}, {100, 100}},
    {{30, 100, 130}, {30, 100, 100, 30}},
    {{130, 1, 200}, {100, 30, 1, 100, 100}},
};

SlotLengths lengths_of(const std::vector<std::uint64_t>& ranges) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t range : ranges) bytes += range;
  SlotLengths lengths;
  lengths.assign(1000, {}, kSlotBytes);  // what was there before does not matter
  lengths.assign(bytes, ranges.size() > 1 ? ranges : std::vector<std::uint64_t>{}, kSlotBytes);
  return lengths;
}

TEST(SlotLengthsTest, of__each_range_starts_a_slot_and_ends_with_a_short_one) {
  for (const Case& one : kCases) {
    const SlotLengths lengths = lengths_of(one.ranges);
    ASSERT_EQ(lengths.slots(), one.lengths.size());
    for (std::uint32_t slot = 0; slot < lengths.slots(); ++slot) {
      EXPECT_EQ(lengths.of(slot), one.lengths[slot]) << slot;
    }
  }
}

TEST(SlotLengthsTest, sum__the_bytes_of_any_set_of_slots) {
  for (const Case& one : kCases) {
    const SlotLengths lengths = lengths_of(one.ranges);
    for (std::uint32_t set = 0; set < 1u << lengths.slots(); ++set) {
      std::uint32_t number = 0;
      std::uint64_t bytes = 0;
      for (std::uint32_t slot = 0; slot < lengths.slots(); ++slot) {
        if ((set >> slot & 1) == 0) continue;
        ++number;
        bytes += one.lengths[slot];
      }
      const auto counts = [set](std::uint32_t slot) { return (set >> slot & 1) != 0; };
      EXPECT_EQ(lengths.sum(number, counts), bytes) << set;
    }
  }
}

}  // namespace
}  // namespace tarpon::slot_lengths_test
