// Every coefficient has one place, rows are nearly full, and no run of rows hurts a block more than
// another.
#include "codec/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ostream>
#include <set>
#include <vector>

namespace tarpon::codec {
namespace {

struct Case {
  std::uint64_t count;
  std::uint32_t most;
  std::uint32_t ways;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.count << " elements, rows of " << one.most << ", " << one.ways << " ways";
}

class StridedLayout : public testing::TestWithParam<Case> {
 protected:
  CodedLayout layout() const {
    return strided_layout(GetParam().count, GetParam().most, GetParam().ways);
  }
};

TEST_P(StridedLayout, every_coefficient_has_a_place_of_its_own) {
  const CodedLayout coded = layout();
  std::vector<bool> taken(coded.room());
  for (std::uint64_t block = 0; block < coded.blocks(); ++block) {
    for (std::uint32_t coefficient = 0; coefficient < coded.block; ++coefficient) {
      const std::uint64_t position = coded.position(block, coefficient);
      ASSERT_LT(position, taken.size());
      ASSERT_FALSE(taken[position]);
      taken[position] = true;
      const std::uint64_t row = position / coded.row_pitch();
      ASSERT_EQ(row, coded.row_of(block, coefficient));
      ASSERT_EQ(coded.group_of(row), block % coded.groups);
      ASSERT_LT(position % coded.row_pitch(), coded.row_elements());
    }
  }
}

TEST_P(StridedLayout, fits_what_was_asked_for) {
  const CodedLayout coded = layout();
  EXPECT_EQ(coded.count, GetParam().count);
  EXPECT_GE(std::uint64_t{coded.groups} * coded.members, coded.blocks());
  EXPECT_LE(coded.row_elements(), GetParam().most);
  if (coded.rows() > 1) {
    EXPECT_GE(4 * coded.row_elements(), 3 * GetParam().most);
  }
  EXPECT_GE(coded.stride, kLeastStride);
  EXPECT_LE(coded.stride, coded.block);
  EXPECT_EQ(std::gcd(coded.groups, GetParam().ways), 1u);
  EXPECT_LT(coded.block, std::max<std::uint64_t>(2 * GetParam().count, kLeastBlock + 1));
}

/// Receiver w has the rows w, w + ways, ...
TEST_P(StridedLayout, a_lost_receiver_costs_all_blocks_alike) {
  const CodedLayout coded = layout();
  for (std::uint32_t way = 0; way < GetParam().ways; ++way) {
    std::vector<std::uint32_t> rows(coded.groups);
    for (std::uint64_t row = way; row < coded.rows(); row += GetParam().ways) {
      ++rows[coded.group_of(row)];
    }
    const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
    EXPECT_LE(*most - *least, 1u);
  }
}

TEST_P(StridedLayout, coefficients_of_rows_add_up_to_blocks) {
  const CodedLayout coded = layout();
  std::vector<std::uint64_t> coefficients(coded.groups);
  for (std::uint64_t row = 0; row < coded.rows(); ++row) {
    ASSERT_LE(coded.coefficients_in(row), coded.stride);
    coefficients[coded.group_of(row)] += coded.coefficients_in(row);
  }
  for (const std::uint64_t sum : coefficients) EXPECT_EQ(sum, coded.block);
}

INSTANTIATE_TEST_SUITE_P(Sizes, StridedLayout,
                         testing::Values(Case{1, 352, 4}, Case{63, 352, 2}, Case{65, 16, 3},
                                         Case{4095, 352, 4}, Case{4096, 352, 4}, Case{4097, 352, 8},
                                         Case{100'000, 352, 6}, Case{283'978, 352, 8},
                                         Case{283'978, 2224, 4}, Case{1'000'003, 352, 64},
                                         Case{50'000, 8, 5}, Case{kFarFrom, 352, 26},
                                         Case{kFarFrom, 2224, 30}));

/// The example of codec/layout.h.
TEST(StridedLayout, is_as_the_protocol_says) {
  const CodedLayout coded = strided_layout(100'000, 352, 3);
  EXPECT_EQ(coded, (CodedLayout{100'000, 4096, 14, 1, 25}));
  EXPECT_EQ(coded.position(7, 30), 2 * 368 + 100u);
  EXPECT_EQ(coded.rows(), 293u);
  EXPECT_EQ(coded.row_elements(), 350u);
}

TEST(StridedLayout, a_large_bucket_wastes_little) {
  const CodedLayout coded = strided_layout(25u << 18, 352, 4);
  EXPECT_EQ(coded.block, kUsualBlock);
  EXPECT_EQ(coded.stride, kLineStride);
  EXPECT_LT(static_cast<double>(coded.coded_count()), 1.02 * (25u << 18));
  EXPECT_EQ(coded.row_elements(), 352u);
}

TEST(StridedLayout, few_rows_have_larger_blocks) {
  EXPECT_EQ(strided_layout(kLargeBlocksFrom - 1, 352, 4).block, kUsualBlock);
  EXPECT_EQ(strided_layout(kLargeBlocksFrom, 352, 4).block, kMostBlock);
  EXPECT_EQ(strided_layout(kFarFrom - 1, 352, 4).block, kMostBlock);
  EXPECT_EQ(strided_layout(kFarFrom, 352, 4).block, kUsualBlock);
}

TEST(StridedLayout, far_rows_are_of_lines_or_eights_unless_that_leaves_them_empty) {
  EXPECT_EQ(strided_layout(25u << 18, 2224, 4).stride, kLineStride);
  EXPECT_EQ(strided_layout(kFarFrom, 2224, 4).stride, kLineStride);
  const CodedLayout eights = strided_layout(kFarFrom, 352, 4);
  EXPECT_EQ(eights.stride, kLeastStride);
  EXPECT_EQ(eights.row_elements(), 344u);
  const CodedLayout neither = strided_layout(kFarFrom, 352, 6);
  EXPECT_EQ(neither.stride, 13u);
  EXPECT_GT(neither.row_elements(), 330u);
}

TEST(StridedLayout, rows_are_an_odd_number_of_lines_apart) {
  const CodedLayout coded = strided_layout(kFarFrom, 2224, 4);
  EXPECT_EQ(coded.row_elements(), 128 * kLineStride);
  EXPECT_EQ(coded.row_pitch(), 129 * kLineStride);
}

/// Two tails: of all rows, and of those of one receiver.
TEST(StridedLayout, the_tail_costs_all_blocks_alike) {
  const CodedLayout coded = strided_layout(25u << 18, 352, 4);
  for (const std::uint32_t step : {1u, 4u}) {
    std::vector<std::uint32_t> rows(coded.groups);
    const std::uint64_t tail = coded.rows() / 50;
    for (std::uint64_t i = 0; i < tail; ++i) ++rows[coded.group_of(coded.rows() - 1 - i * step)];
    const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
    EXPECT_LE(*most - *least, 1u);
  }
}

TEST(ContiguousLayout, leaves_blocks_where_they_are) {
  const CodedLayout coded = contiguous_layout(10'000, 4096);
  EXPECT_EQ(coded.coded_count(), 3u * 4096);
  EXPECT_EQ(coded.position(2, 17), 2u * 4096 + 17);
  EXPECT_EQ(coded.position(0, 4095), 4095u);
}

}  // namespace
}  // namespace tarpon::codec
