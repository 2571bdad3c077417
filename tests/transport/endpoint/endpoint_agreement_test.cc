// AGREEMENT packets: how they go between endpoints, which are refused, and how many may wait.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/endpoint_harness.h"

namespace tarpon::endpoint_agreement_test {
namespace {

using testing_support::Harness;
using testing_support::Packet;
using testing_support::Packets;

AgreementPayload report(std::uint64_t step) {
  AgreementPayload payload;
  payload.kind = AgreementPayload::kReport;
  payload.step = step;
  payload.report_lost = 0.25;
  payload.digest = 0x1122334455667788;
  payload.patience_ms = 70;
  return payload;
}

TEST(EndpointAgreementTest, send__arrives_whole_and_in_order) {
  Harness net(3);
  for (std::uint64_t step = 1; step <= 3; ++step) net[0].send({2, report(step)});
  EXPECT_FALSE(net[0].memory().idle());
  const Packets packets = net.poll(0);
  EXPECT_TRUE(net[0].memory().idle());
  ASSERT_EQ(packets.size(), 3u);
  const tarpon_header header = packets[0].header();
  EXPECT_EQ(header.type, TARPON_AGREEMENT);
  EXPECT_EQ(header.tag, 0u);
  EXPECT_EQ(header.operation, 0u);
  EXPECT_EQ(header.slot, 0u);
  EXPECT_EQ(header.closed_below, 0);
  EXPECT_EQ(header.length, sizeof(AgreementPayload));
  net.give(packets);
  EXPECT_EQ(net[2].counters().control_in, 3u);
  const auto come = net[2].take_agreements();
  ASSERT_EQ(come.size(), 3u);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    EXPECT_EQ(come[step - 1].peer, 0);
    const AgreementPayload sent = report(step);
    EXPECT_EQ(std::memcmp(&come[step - 1].payload, &sent, sizeof sent), 0);
  }
  EXPECT_TRUE(net[2].take_agreements().empty());
  EXPECT_TRUE(net.poll(2).empty());  // no answer
}

TEST(EndpointAgreementTest, malformed_payload__is_dropped_as_fields) {
  Harness net(2);
  net[0].send({1, report(1)});
  Packet packet = net.poll(0).at(0);
  std::uint64_t dropped = 0;
  const auto expect_dropped = [&](const void* payload, std::size_t bytes) {
    packet.set_payload(payload, bytes);
    net.give(packet);
    EXPECT_EQ(net.dropped(1, DropReason::fields), ++dropped);
  };
  const std::vector<std::byte> bytes(2 * sizeof(AgreementPayload), std::byte{1});
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    if (length != sizeof(AgreementPayload)) expect_dropped(bytes.data(), length);
  }
  for (unsigned kind = 0; kind < 256; ++kind) {
    AgreementPayload payload = report(1);
    payload.kind = static_cast<std::uint8_t>(kind);
    const bool known = kind == AgreementPayload::kReport || kind == AgreementPayload::kVerdict;
    if (!known) expect_dropped(&payload, sizeof payload);
  }
  AgreementPayload payload = report(1);
  payload.verdict = AgreementPayload::kVerdicts;
  expect_dropped(&payload, sizeof payload);
  payload.verdict = 0;
  payload.text_bytes = 1;
  expect_dropped(&payload, sizeof payload);
  EXPECT_TRUE(net[1].take_agreements().empty());
  EXPECT_EQ(net[1].counters().control_in, 0u);
}

TEST(EndpointAgreementTest, limits__eight_of_each_peer) {
  Harness net(3);
  for (std::uint64_t step = 0; step < 100; ++step) net[0].send({2, report(step)});
  net[0].send({1, report(7)});
  const Packets packets = net.poll(0);
  EXPECT_EQ(packets.size(), 9u);
  for (int round = 0; round < 3; ++round) {
    for (const Packet& packet : packets) {
      if (packet.to == 2) net.give(packet);
    }
  }
  net[1].send({2, report(3)});
  net.give(net.poll(1));
  EXPECT_EQ(net.dropped(2, DropReason::early_overrun), 16u);
  EXPECT_EQ(net[2].counters().control_in, 9u);
  EXPECT_EQ(net[2].take_agreements().size(), 9u);
}

TEST(EndpointAgreementTest, dead_ranks__get_none_and_are_not_believed) {
  Harness net(2);
  net[0].send({1, report(1)});
  const Packets packets = net.poll(0);
  net[0].send({1, report(2)});
  net[0].peer_dead(1, net.now);
  net[0].send({1, report(3)});
  EXPECT_TRUE(net.poll(0).empty());
  net[1].peer_dead(0, net.now);
  net.give(packets);
  EXPECT_EQ(net.dropped(1, DropReason::sender), 1u);
  EXPECT_TRUE(net[1].take_agreements().empty());
}

}  // namespace
}  // namespace tarpon::endpoint_agreement_test
