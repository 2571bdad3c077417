// Probes over the network in memory.
#include "transport/probe_packet.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "transport/ports/narrow_port.h"
#include "transport/simulated/simulated_port.h"

namespace tarpon::probe_packet_test {
namespace {

constexpr std::uint32_t kJob = 0xbeef;

/// What rank 1 receives of what rank 0 sends.
class ProbePacketTest : public ::testing::Test {
 protected:
  std::vector<RxPacket> arrived() {
    network_.advance_to(network_.now() + 1ms);
    const auto packets = to_->receive(network_.now());
    return {packets.begin(), packets.end()};
  }

  SimulatedNetwork network_{{}};
  std::unique_ptr<Port> from_ = network_.make_port(0);
  std::unique_ptr<Port> to_ = network_.make_port(1);
};

TEST_F(ProbePacketTest, read_probe__inverts_send_probe) {
  for (const tarpon_type type : {TARPON_PROBE, TARPON_PROBE_REPLY}) {
    for (const tarpon_probe kind :
         {TARPON_PROBE_FULL, TARPON_PROBE_SMALL, TARPON_PROBE_BURST, TARPON_PROBE_PATH}) {
      ASSERT_TRUE(send_probe(*from_, {type, kind, 7, 448}, kJob, 0, 1));
      const auto packets = arrived();
      ASSERT_EQ(packets.size(), 1u);
      EXPECT_EQ(packets[0].length, TARPON_HEADER_BYTES + 448);
      const auto probe = read_probe(packets[0], kJob);
      ASSERT_TRUE(probe);
      EXPECT_EQ(probe->type, type);
      EXPECT_EQ(probe->kind, kind);
      EXPECT_EQ(probe->number, 7u);
      EXPECT_EQ(probe->bytes, 448u);
    }
  }
}

TEST_F(ProbePacketTest, read_probe__refuses_what_is_none_of_the_job) {
  ASSERT_TRUE(send_probe(*from_, {.bytes = 64}, kJob, 0, 1));
  const auto packets = arrived();
  ASSERT_EQ(packets.size(), 1u);
  const RxPacket good = packets[0];
  EXPECT_TRUE(read_probe(good, kJob));
  EXPECT_FALSE(read_probe(good, kJob + 1)) << "another cookie";
  RxPacket other = good;
  other.source = kUnknownRank;
  EXPECT_FALSE(read_probe(other, kJob)) << "an address of no rank";
  other.source = 1;
  EXPECT_FALSE(read_probe(other, kJob)) << "another rank's address";
  for (const std::uint32_t length : {good.length - 1, TARPON_HEADER_BYTES - 1, 0u}) {
    other = good;
    other.length = length;
    EXPECT_FALSE(read_probe(other, kJob)) << length << " bytes";
  }
  std::vector<std::byte> bytes(good.data, good.data + good.length);
  bytes[offsetof(tarpon_header, type)] = std::byte{TARPON_DATA};
  other = good;
  other.data = bytes.data();
  EXPECT_FALSE(read_probe(other, kJob)) << "another type";
}

TEST_F(ProbePacketTest, send_probe__without_a_free_frame_says_so) {
  SimulatedNetwork network({.frames = 0});
  const auto port = network.make_port(0);
  EXPECT_FALSE(send_probe(*port, {}, kJob, 0, 1));
}

TEST_F(ProbePacketTest, narrow_port__changes_the_largest_payload_alone) {
  const PortCapabilities before = from_->capabilities();
  const NarrowPort narrow(std::move(from_), 448);
  EXPECT_EQ(narrow.capabilities().max_payload, 448u);
  EXPECT_EQ(narrow.capabilities().name, before.name);
  EXPECT_EQ(narrow.capabilities().receive_bytes, before.receive_bytes);
}

}  // namespace
}  // namespace tarpon::probe_packet_test
