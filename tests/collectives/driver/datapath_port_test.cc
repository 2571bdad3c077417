// What a rank offers on an interface, and the port that it makes of it.
#include "collectives/driver/datapath_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/private_network.h"
#include "xdp/attached.h"

namespace tarpon::datapath_port_test {
namespace {

using testing::HasSubstr;
using testing_support::run_command;
using testing_support::VethPair;

constexpr std::uint32_t kMtu = 1500;
constexpr const char* kAddress = "10.5.0.1";

/// The port of a rank that is alone on "va".
Result<DatapathPort> port_of(DatapathOffer offer) {
  auto socket = UdpSocket::open({.address = kAddress});
  if (!socket) return fail(socket.error());
  RankInfo alone;
  alone.address = kAddress;
  alone.port = socket->port();
  alone.interface = "va";
  alone.datapath = "xdp";
  alone.queues = 1;
  alone.mtu = kMtu;
  EngineOptions agreed;
  agreed.slot_bytes = 1408;
  return make_port(std::move(offer), std::move(*socket), {alone}, agreed);
}

TEST(Lanes, by_processors__half_of_what_one_for_the_application_leaves) {
  EXPECT_EQ(lanes_by_processors(0.5, 1), 1u);
  EXPECT_EQ(lanes_by_processors(2, 1), 1u);
  EXPECT_EQ(lanes_by_processors(3, 1), 1u);
  EXPECT_EQ(lanes_by_processors(4, 1), 2u);
  EXPECT_EQ(lanes_by_processors(16, 4), 2u);
  EXPECT_EQ(lanes_by_processors(16, 8), 1u);
  EXPECT_EQ(lanes_by_processors(16, 1), 4u);
  EXPECT_EQ(lanes_by_processors(1000, 1), 4u);
}

TEST(QueueShare, queues_in_turn__none_twice) {
  using testing::ElementsAre;
  EXPECT_THAT(queue_share({.place = 0, .ranks = 3}, 8), ElementsAre(0, 3, 6));
  EXPECT_THAT(queue_share({.place = 1, .ranks = 3}, 8), ElementsAre(1, 4, 7));
  EXPECT_THAT(queue_share({.place = 2, .ranks = 3}, 8), ElementsAre(2, 5));
  EXPECT_THAT(queue_share({.place = 2, .ranks = 3}, 2), testing::IsEmpty());
}

TEST(QueueShare, ranks_of_an_interface_and_data_path__share_its_queues) {
  std::vector<RankInfo> ranks(4);
  for (RankInfo& rank : ranks) rank.datapath = "xdp";
  ranks[1].interface = "another";
  ranks[2].datapath = "uring";
  EXPECT_EQ(sharing_of(3, ranks).place, 1u);
  EXPECT_EQ(sharing_of(3, ranks).ranks, 2u);
}

TEST(DatapathPortTest, a_program_in_skb_mode_is_used_in_copy_mode) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  const auto program = xdp::Program::use(pair.a(), xdp::AttachMode::generic);
  ASSERT_TRUE(program) << program.error().message;
  const auto offer = offer_datapath(Datapath::xdp, "va", kMtu);
  ASSERT_TRUE(offer) << offer.error().message;
  EXPECT_EQ(offer->copy, xdp::CopyMode::copy);
}

TEST(DatapathPortTest, what_was_to_be_zero_copy_and_is_not_granted_takes_a_socket) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  run_command("ip address add 10.5.0.1/24 dev va");
  auto offer = offer_datapath(Datapath::xdp, "va", kMtu);
  ASSERT_TRUE(offer) << offer.error().message;
  EXPECT_EQ(offer->copy, xdp::CopyMode::automatic);
  offer->copy = xdp::CopyMode::zero_copy;  // as `auto` offers it
  const auto port = port_of(std::move(*offer));
  ASSERT_TRUE(port) << port.error().message;
  EXPECT_NE(port->datapath, Datapath::xdp);
  EXPECT_THAT(port->reason, HasSubstr("queue 0 of va: the driver has no zero-copy"));
}

TEST(DatapathPortTest, a_helper_that_has_ended_since_the_offer_costs_af_xdp_alone) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  run_command("ip address add 10.5.0.1/24 dev va");
  for (const bool required : {false, true}) {
    DatapathOffer offer{.datapath = Datapath::xdp,
                        .reason = "asked for, by tarpon xdp serve",
                        .required = required,
                        .max_payload = 1408,
                        .queues = 1,
                        .served = true};
    const auto port = port_of(std::move(offer));
    ASSERT_EQ(port.has_value(), !required);
    const std::string text = port ? port->reason : port.error().message;
    EXPECT_THAT(text, HasSubstr("tarpon xdp serve does not run (/run/tarpon/va.sock)"));
    EXPECT_TRUE(!port || port->datapath != Datapath::xdp);
  }
}

}  // namespace
}  // namespace tarpon::datapath_port_test
