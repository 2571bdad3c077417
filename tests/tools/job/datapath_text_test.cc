// One line about the datapaths of all ranks.
#include "tools/job/datapath_text.h"

#include <fmt/format.h>
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

TEST(ExposedText, exposed_text__warns_of_addresses_that_are_not_private) {
  const auto at = [](const std::vector<std::string>& addresses) {
    std::vector<RankInfo> ranks(addresses.size());
    for (std::size_t i = 0; i < addresses.size(); ++i) ranks[i].address = addresses[i];
    return exposed_text(ranks);
  };
  EXPECT_EQ(at({"127.0.0.1", "10.255.0.1", "172.16.0.1", "172.31.255.254", "192.168.1.2",
                "169.254.3.4", "100.64.0.1"}),
            "");
  for (const char* address : {"8.8.8.8", "172.32.0.1", "172.15.0.1", "11.0.0.1", "192.169.0.1",
                              "100.128.0.1", "126.0.0.1"}) {
    EXPECT_THAT(at({"10.0.0.1", address}),
                testing::HasSubstr(fmt::format("rank 1 is at {},", address)));
  }
}

}  // namespace
}  // namespace tarpon::datapath_text_test
