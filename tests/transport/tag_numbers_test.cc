#include "transport/tag_numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/random.h"

namespace tarpon::tag_numbers_test {
namespace {

TEST(TagNumbers, put__the_oldest_goes_beyond_the_limit) {
  TagNumbers numbers(3);
  for (std::uint32_t tag = 1; tag <= 3; ++tag) numbers.put(tag, {10 * tag});
  numbers.put(1, {11});  // the newest one now
  EXPECT_FALSE(numbers.has_forgotten());
  numbers.put(4, {40, true});
  EXPECT_TRUE(numbers.has_forgotten());
  EXPECT_EQ(numbers.find(1), TagNumbers::Known{11});
  EXPECT_EQ(numbers.find(2), std::nullopt);
  EXPECT_EQ(numbers.find(3), TagNumbers::Known{30});
  EXPECT_EQ(numbers.find(4), (TagNumbers::Known{40, true}));
  EXPECT_EQ(numbers.size(), 3u);
}

TEST(TagNumbers, put__kept_tags_stay) {
  constexpr std::array<std::uint32_t, 2> kKept{1, 3};
  TagNumbers numbers(4, kKept);
  for (std::uint32_t tag = 1; tag < 100; ++tag) numbers.put(tag, {.number = tag});
  EXPECT_EQ(numbers.size(), 4u);
  for (const std::uint32_t tag : {1u, 3u, 98u, 99u}) {
    ASSERT_TRUE(numbers.find(tag)) << tag;
    EXPECT_EQ(numbers.find(tag)->number, tag);
  }
  TagNumbers small(1, kKept);
  small.put(1, {});
  small.put(3, {});
  EXPECT_EQ(small.size(), 1u);
}

TEST(TagNumbers, put__nothing_is_remembered_with_a_limit_of_0) {
  TagNumbers numbers(0);
  numbers.put(7, {1});
  EXPECT_TRUE(numbers.has_forgotten());
  EXPECT_EQ(numbers.find(7), std::nullopt);
}

TEST(TagNumbers, any_order_of_calls__as_a_plain_list) {
  constexpr std::size_t kLimit = 100;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    TagNumbers numbers(kLimit);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> model;  // oldest first
    // Consecutive tags, and tags whose low bits are alike: both have to find their places.
    const std::uint32_t step = seed % 2 == 0 ? 1 : 1u << 20;
    for (std::uint32_t round = 0; round < 3000; ++round) {
      const auto tag = static_cast<std::uint32_t>(random.below(250)) * step;
      const auto known = std::find_if(model.begin(), model.end(),
                                      [tag](const auto& one) { return one.first == tag; });
      ASSERT_EQ(numbers.find(tag), known == model.end()
                                       ? std::nullopt
                                       : std::optional(TagNumbers::Known{known->second}));
      if (known != model.end()) model.erase(known);
      if (random.chance(0.3)) {
        numbers.erase(tag);
      } else {
        numbers.put(tag, {round});
        if (model.size() == kLimit) model.erase(model.begin());
        model.emplace_back(tag, round);
      }
      ASSERT_EQ(numbers.size(), model.size());
    }
    for (const auto& [tag, number] : model) {
      EXPECT_EQ(numbers.find(tag), TagNumbers::Known{number});
    }
    std::vector<std::uint32_t> newest;
    for (std::size_t i = 0; i < 10; ++i) newest.push_back(model[model.size() - 1 - i].first);
    EXPECT_EQ(numbers.newest(10), newest);
  }
}

}  // namespace
}  // namespace tarpon::tag_numbers_test
