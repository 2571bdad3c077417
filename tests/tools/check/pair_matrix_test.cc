// The tables of `tarpon check`: columns that stand below one another, in 120 columns.
#include "tools/check/pair_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace tarpon::pair_matrix_test {
namespace {

const Colour kPlain(-1, process_environment());

std::vector<PairProbe> all_pairs(Rank world) {
  std::vector<PairProbe> pairs;
  for (Rank from = 0; from < world; ++from) {
    for (Rank to = 0; to < world; ++to) {
      if (from == to) continue;
      pairs.push_back({.from = from, .to = to, .answered = 1});
    }
  }
  return pairs;
}

std::string matrix_of(Rank world) {
  return pair_matrix(
      all_pairs(world), world, [](const PairProbe&) { return std::string("yes"); }, kPlain);
}

TEST(PairMatrix, few_ranks) {
  EXPECT_EQ(matrix_of(2),
            "              to 0     to 1\n"
            "   from 0        -      yes\n"
            "   from 1      yes        -\n");
}

TEST(PairMatrix, many_ranks__lines_of_a_block_are_alike_and_fit) {
  std::istringstream lines(matrix_of(30));
  std::vector<std::size_t> lengths;
  for (std::string line; std::getline(lines, line);) lengths.push_back(line.size());
  ASSERT_EQ(lengths.size(), 3u * 31);  // 12 + 12 + 6 columns
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_EQ(lengths[i], i < 2 * 31 ? 117u : 63u) << "line " << i;
  }
}

TEST(PairMatrix, a_hundred_ranks__longer_labels) {
  std::istringstream lines(matrix_of(101));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u);
}

}  // namespace
}  // namespace tarpon::pair_matrix_test
