// Endpoints, packet by packet: what comes for an operation that is over here.
#include <gtest/gtest.h>

#include "tests/support/endpoint_harness.h"
#include "transport/endpoint.h"

namespace tarpon::endpoint_closed_test {
namespace {

using namespace testing_support;

/// All DATA of an operation of `slots` slots from rank 0 to rank 1, which closes it without them.
struct LateData {
  explicit LateData(Harness& net, std::uint64_t slots, std::uint32_t tag = 0) {
    net.submit(exchange(0, 2, slots * kSlot, 1, tag), 0);
    packets = of_type(net.poll(0), TARPON_DATA);
    const Call& b = net.submit(exchange(1, 2, slots * kSlot, 1, tag), 1);
    net[1].close(b.handle, nullptr);
    net.poll(1);
  }
  Packets packets;
};

EndpointOptions roomy_options() {
  EndpointOptions options = small_options();
  options.initial_credit = 500;
  return options;
}

std::size_t tails(const Packets& packets) {
  std::size_t count = 0;
  for (const Packet& packet : packets) count += (packet.header().flags & TARPON_FLAG_TAIL) != 0;
  return count;
}

TEST(EndpointClosedTest, data__the_tail_of_a_message_gets_one_answer) {
  Harness net(2, roomy_options());
  const LateData late(net, 500);
  ASSERT_EQ(tails(late.packets), 5u);
  net.give(late.packets);
  EXPECT_EQ(of_type(net.poll(1), TARPON_CLOSED).size(), 1u);
  // The answer may be lost.
  net.now += small_options().quiet_delay;
  net.give(late.packets.back());
  net.give(late.packets.back());
  EXPECT_EQ(of_type(net.poll(1), TARPON_CLOSED).size(), 1u);
}

TEST(EndpointClosedTest, data__each_operation_and_tag_gets_its_own_answer) {
  Harness net(2, roomy_options());
  const LateData first(net, 3), second(net, 3), other(net, 3, 7);
  for (const LateData* late : {&first, &second, &other}) net.give(late->packets);
  EXPECT_EQ(of_type(net.poll(1), TARPON_CLOSED).size(), 3u);
}

// What comes too late for one tag says nothing about the bounds of another.
TEST(EndpointClosedTest, late_packets__count_for_the_operations_of_their_tag_alone) {
  Harness net(2, roomy_options());
  const Call& own = net.submit(exchange(1, 2, kFew, 1, 3), 1);
  const Call& other = net.submit(exchange(1, 2, kFew, 1, 4), 1);
  net.submit(exchange(0, 2, kFew, 1, 3), 0);
  const Packets packets = of_type(net.poll(0), TARPON_DATA);
  ASSERT_EQ(packets.size(), 3u);
  net[1].close(own.handle, nullptr);
  const Call& next = net.submit(exchange(1, 2, kFew, 1, 3), 1);
  net.give(packets);
  EXPECT_EQ(net[1].take_late_packets(other.handle), 0u);
  EXPECT_EQ(net[1].take_late_packets(next.handle), 3u);
  EXPECT_EQ(net[1].take_late_packets(next.handle), 0u);
}

}  // namespace
}  // namespace tarpon::endpoint_closed_test
