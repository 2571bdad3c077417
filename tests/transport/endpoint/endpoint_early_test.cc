// Room for early packets on a small receive buffer: 208 KiB, what a kernel gives by default.
#include <gtest/gtest.h>

#include "tests/support/endpoint_harness.h"
#include "transport/endpoint.h"

namespace tarpon::endpoint_early_test {
namespace {

using namespace testing_support;

constexpr std::uint16_t kRanks = 8;
constexpr std::uint32_t kSlots = 10;  // unasked: two operations of 7 peers fit the buffer

Harness make_job() {
  PortCapabilities port = plain_port();
  port.max_payload = 1408;
  port.receive_bytes = 208 << 10;
  EndpointOptions options = small_options();
  options.initial_credit = kSlots;
  return Harness(kRanks, options, port);
}

/// What rank 0 gets of `tag`.
Packets to_zero(Harness& net, std::uint32_t tag, Rank from) {
  net.submit(exchange(from, kRanks, kSlots * kSlot, 1, tag), from);
  Packets packets = of_type(net.poll(from), TARPON_DATA);
  std::erase_if(packets, [](const Packet& packet) { return packet.to != 0; });
  return packets;
}

TEST(EndpointEarlyTest, small_buffer__all_early_operations_of_a_tag_find_their_cells) {
  Harness net = make_job();
  for (std::uint32_t i = 0; i < small_options().window; ++i) {
    for (Rank peer = 1; peer < kRanks; ++peer) net.give(to_zero(net, 5, peer));
  }
  EXPECT_EQ(net[0].counters().parked, small_options().window * (kRanks - 1) * kSlots);
  EXPECT_EQ(net.dropped(0, DropReason::early_overrun), 0u);
}

TEST(EndpointEarlyTest, cells__of_calls_that_this_rank_never_makes_come_free) {
  Harness net(2);
  // Rank 1 calls on tags that rank 0 never uses, and gives each call up.
  for (std::uint32_t tag = 100; tag < 116; ++tag) {
    const Call& call = net.submit(exchange(1, 2, kMany, 1, tag), 1);
    net.settle();
    EXPECT_GT(net[0].memory().parked, 0u);
    net[1].abort(call.handle, TARPON_ABORT_LATE, 0b01);
    net.settle();
  }
  EXPECT_EQ(net[0].memory().parked, 0u);
}

TEST(EndpointEarlyTest, cells__of_calls_that_wait_for_too_long_go_to_new_ones) {
  Harness net(2);
  for (std::uint32_t tag = 100; tag < 116; ++tag) net.submit(exchange(1, 2, kMany, 1, tag), 1);
  net.run_until(net.now + 11s, [](const Packet& packet) { return packet.from == 1 ? 1 : 0; });
  const std::uint64_t before = net.dropped(0, DropReason::early_overrun);
  net.submit(exchange(1, 2, kFew, 1, 7), 1);
  net.tick(1);
  for (const Packet& packet : net.poll(1)) {
    if (packet.header().tag == 7) net.give(packet);
  }
  EXPECT_EQ(net.dropped(0, DropReason::early_overrun), before);
}

}  // namespace
}  // namespace tarpon::endpoint_early_test
