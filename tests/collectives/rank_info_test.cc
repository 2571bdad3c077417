#include "collectives/rank_info.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tarpon::rank_info_test {
namespace {

RankInfo some() {
  RankInfo info;
  info.host = "node1";
  info.user = 1000;
  info.network = "0b7c net:[4026531840]";
  info.address = "10.0.0.1";
  info.port = 40000;
  info.flow_ports = {40001, 40002};
  info.control_port = 40003;
  info.interface = "eth0";
  info.driver = "virtio_net";
  info.mtu = 1500;
  info.datapath = "uring";
  info.datapath_reason = "io_uring is usable";
  info.lanes = 3;
  info.queues = 2;
  info.max_payload = 1408;
  info.receive_bytes = 1 << 24;
  info.checksums = true;
  return info;
}

TEST(RankInfo, decode__inverts_encode) {
  const auto decoded = decode_rank_info(encode(some()));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, some());
}

TEST(RankInfo, decode__refuses_what_lacks_a_field) {
  const std::string whole = encode(some());
  for (std::size_t end = whole.find('\n'); end + 1 < whole.size();
       end = whole.find('\n', end + 1)) {
    EXPECT_FALSE(decode_rank_info(whole.substr(0, end + 1))) << end;
  }
}

TEST(RankInfo, decode__leaves_nothing_that_a_terminal_would_obey) {
  RankInfo info = some();
  info.host = "\x1b]0;owned\x07";
  info.interface = "eth0\r";
  info.datapath_reason = "a\tb\x9b";
  info.refuse(Error::make(Error::Code::io, "/nope/\x1b[2J: cannot open"));
  const auto decoded = decode_rank_info(encode(info));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->host, "?]0;owned?");
  EXPECT_EQ(decoded->interface, "eth0?");
  EXPECT_EQ(decoded->datapath_reason, "a?b?");
  EXPECT_EQ(decoded->error, "/nope/?[2J: cannot open");
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
  EXPECT_EQ(at({"10.0.0.1", ""}), "");
  EXPECT_EQ(at({"8.8.8.8"}), "");
  EXPECT_EQ(at({"8.8.8.8", "8.8.8.8"}), "");
  for (const char* address : {"8.8.8.8", "172.32.0.1", "172.15.0.1", "11.0.0.1", "192.169.0.1",
                              "100.128.0.1", "126.0.0.1"}) {
    EXPECT_THAT(at({"10.0.0.1", address}),
                testing::HasSubstr(fmt::format("rank 1 is at {},", address)));
  }
}

}  // namespace
}  // namespace tarpon::rank_info_test
