// What reports say of a rank's own host.
#include "tools/job/host_trouble.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace tarpon::host_trouble_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HostTrouble, refused_packets__are_explained_by_their_error) {
  PortStatistics before, after;
  EXPECT_EQ(host_trouble(before, after, 1500), "");
  after.tx_dropped = 7;
  after.send_error = EPERM;
  EXPECT_THAT(host_trouble(before, after, 1500),
              AllOf(HasSubstr("refused to send 7 packets (Operation not permitted)"),
                    HasSubstr("open outgoing UDP in its own firewall")));
  after.send_error = EMSGSIZE;
  EXPECT_THAT(host_trouble(before, after, 1500), HasSubstr("an MTU below 1500"));
  before.tx_dropped = 7;
  EXPECT_EQ(host_trouble(before, after, 1500), "") << "none since";
}

TEST(HostTrouble, full_buffer__names_the_setting) {
  PortStatistics after;
  after.rx_overruns = 12;
  EXPECT_THAT(host_trouble({}, after, 1500),
              AllOf(HasSubstr("12 packets were lost in this host's own full receive buffer"),
                    HasSubstr("net.core.rmem_max")));
}

TEST(HostTrouble, small_buffers__name_the_ranks) {
  std::vector<RankInfo> ranks(3);
  for (RankInfo& rank : ranks) rank.receive_bytes = 1 << 20;
  EXPECT_EQ(small_buffers_line(ranks), "");
  ranks[1].receive_bytes = 4096;
  EXPECT_THAT(small_buffers_line(ranks), HasSubstr("rank 1 holds only 4096 bytes"));
}

}  // namespace
}  // namespace tarpon::host_trouble_test
