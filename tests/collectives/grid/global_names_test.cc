#include "collectives/grid/global_names.h"

#include <gtest/gtest.h>

namespace tarpon::global_names_test {
using grid::global_text;
namespace {

const std::vector<Rank> kRanks = {5, 69, 133, 197};

TEST(GlobalTextTest, exchanges_the_numbers_of_ranks_and_no_other) {
  for (const auto& [part, global] : {
           std::pair("", ""),
           std::pair("rank 2: no memory", "rank 133: no memory"),
           std::pair("ranks 0, 2: no memory; rank 1: no such file",
                     "ranks 5, 133: no memory; rank 69: no such file"),
           std::pair("ranks 0, 1 and 2 are dead", "ranks 5, 69 and 133 are dead"),
           std::pair("ranks 0, 1 and 2 more", "ranks 5, 69 and 2 more"),
           std::pair("2 of 3 ranks answer", "2 of 3 ranks answer"),
           std::pair("of rank 2: 1408 of 8192 B received", "of rank 133: 1408 of 8192 B received"),
           std::pair("ranks 0 and 3 of a host", "ranks 5 and 197 of a host"),
           std::pair("rank 0, 2 of 4 ranks answer", "rank 5, 2 of 4 ranks answer"),
           std::pair("no control connection with rank 3 (refused)",
                     "no control connection with rank 197 (refused)"),
           std::pair("rank 0, 2 s late", "rank 5, 2 s late"),
           std::pair("rank 4 is not there", "rank 4 is not there"),
           std::pair("crank 1, ranking 2", "crank 1, ranking 2"),
       }) {
    EXPECT_EQ(global_text(part, kRanks), global);
  }
}

}  // namespace
}  // namespace tarpon::global_names_test
