// One line about the datapaths of all ranks.
#include "tools/job/datapath_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tarpon::datapath_text_test {
namespace {

RankInfo rank(const std::string& datapath, const std::string& reason) {
  RankInfo info;
  info.datapath = datapath;
  info.datapath_reason = reason;
  return info;
}

TEST(DatapathText, one_reason_for_all) {
  const std::vector<RankInfo> ranks(3, rank("uring", "asked for"));
  EXPECT_EQ(datapath_text(ranks), "all ranks uring: asked for");
}

TEST(DatapathText, groups_in_the_order_of_their_first_ranks) {
  const RankInfo direct = rank("xdp", "queue 0");
  const RankInfo other = rank("uring", "no queue");
  const std::vector<RankInfo> ranks{direct, other, other, other, direct, other, other};
  EXPECT_EQ(datapath_text(ranks), "ranks 0,4 xdp: queue 0; ranks 1-3,5,6 uring: no queue");
}

}  // namespace
}  // namespace tarpon::datapath_text_test
