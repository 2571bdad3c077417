// Endpoints, packet by packet: announcements, and the credit that they give.
#include "transport/endpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/endpoint_harness.h"
#include "transport/random.h"

namespace tarpon::endpoint_credit_test {
namespace {

using namespace testing_support;

constexpr Event::Kind kClosed = Event::Kind::stage_closed;

TEST(EndpointTest, announce__ready_is_repeated_with_back_off_until_heard) {
  Harness net(2);
  net.submit(exchange(0, 2, kMany), 0);
  const Time start = net.now;
  std::vector<Duration> at;
  std::vector<std::uint32_t> repetition;
  const auto watch = [&](const Packet& packet) {
    if (packet.header().type == TARPON_READY) {
      at.push_back(net.now - start);
      repetition.push_back(packet.header().slot);
      tarpon_ready ready;
      EXPECT_EQ(packet.payload().size(), sizeof ready);
      std::memcpy(&ready, packet.payload().data(), sizeof ready);
      EXPECT_EQ(ready.signature[0], 1);
      EXPECT_GE(ready.grant[0], small_options().initial_credit);
      EXPECT_EQ(ready.grant[1], 0u);
    }
    return 0;
  };
  net.run_until(start + 400ms, watch);
  EXPECT_EQ(at, (std::vector<Duration>{0ms, 10ms, 30ms, 70ms, 150ms, 250ms, 350ms}));
  EXPECT_EQ(repetition, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6}));

  // One packet of the peer ends it.
  Harness other(2);
  other.submit(exchange(1, 2, kMany), 1);
  net.give(of_type(other.poll(1), TARPON_DATA)[0]);
  at.clear();
  net.run_until(start + 2s, watch);
  EXPECT_TRUE(at.empty());
}

TEST(EndpointTest, announce__data_announces_where_the_initial_credit_is_enough) {
  Harness net(2);
  Call& a = net.submit(exchange(0, 2, kFew), 0);
  Call& b = net.submit(exchange(1, 2, kFew), 1);
  std::uint64_t others = 0;
  net.run_until(net.now + 1s, [&](const Packet& packet) {
    others += packet.header().type != TARPON_DATA;
    return 1;
  });
  EXPECT_EQ(others, 0u);
  expect_exchanged(net, a, b, kFew);

  Harness silent(2);  // nothing is heard: then READY follows
  silent.submit(exchange(0, 2, kFew), 0);
  EXPECT_TRUE(of_type(silent.poll(0), TARPON_READY).empty());
  silent.now += 10ms;
  silent.tick(0);
  EXPECT_EQ(of_type(silent.poll(0), TARPON_READY).size(), 1u);
}

TEST(EndpointTest, announce__a_repeated_ready_is_answered_where_nothing_else_would_be_said) {
  Harness net(2);
  auto receiver = from_zero(1, 2, kFew);
  net.submit(from_zero(0, 2, kFew), 0);
  net.submit(std::move(receiver), 1);
  net.poll(0);  // all DATA is lost
  net.now += 10ms;
  net.tick(0);
  net.poll(0);  // the first READY as well
  net.now += 20ms;
  net.tick(0);
  const Packets second = of_type(net.poll(0), TARPON_READY);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].header().slot, 1u);
  net.give(second);
  EXPECT_EQ(of_type(net.poll(1), TARPON_CREDIT).size(), 1u);
}

TEST(EndpointTest, announce__ready_of_a_closed_operation_is_answered_by_closed) {
  Harness net(2);
  Call& b = net.submit(exchange(1, 2, kMany), 1);
  net[1].close(b.handle, nullptr);
  net.poll(1);
  net.submit(exchange(0, 2, kMany), 0);
  net.tick(0);
  const Packets ready = of_type(net.poll(0), TARPON_READY);
  ASSERT_EQ(ready.size(), 1u);
  net.give(ready);
  const Packets answer = net.poll(1);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].header().type, TARPON_CLOSED);
  net.give(answer);
  // Nobody wants its DATA any more, and READY stops.
  net.run_until(net.now + 1s, [](const Packet& packet) {
    EXPECT_NE(packet.header().type, TARPON_READY);
    EXPECT_NE(packet.header().type, TARPON_DATA);
    return 0;
  });
}

// -- credit

TEST(EndpointTest, credit__no_more_than_the_initial_one_to_a_silent_peer) {
  Harness net(2);
  net.submit(exchange(0, 2, kMany), 0);
  std::vector<std::uint32_t> seen;
  net.run_until(net.now + 3s, [&](const Packet& packet) {
    if (packet.header().type == TARPON_DATA) seen.push_back(packet.header().slot);
    return 0;
  });
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST(EndpointTest, credit__is_given_by_ready_credit_and_repair_alike) {
  for (const std::uint8_t type : {TARPON_READY, TARPON_CREDIT, TARPON_REPAIR}) {
    Harness net(2);
    net.submit(exchange(0, 2, kMany), 0);
    net.submit(exchange(1, 2, kMany), 1);
    EXPECT_EQ(slots_of(net.poll(0)).size(), 4u);
    Packet packet = of_type(net.poll(1), TARPON_DATA)[0];
    tarpon_header header = packet.header();
    header.type = type;
    header.flags &= TARPON_INTEGRITY_MASK;
    header.slot = type == TARPON_READY ? 0 : 9;
    packet.set(header);
    tarpon_ready ready{};
    ready.signature[0] = 1;
    ready.grant[0] = 9;
    packet.set_payload(&ready, type == TARPON_READY ? sizeof ready : 0);
    net.give(packet);
    EXPECT_EQ(slots_of(net.poll(0)), (std::vector<std::uint32_t>{4, 5, 6, 7, 8}));
    header = packet.header();
    if (type == TARPON_READY) continue;
    header.slot = 5;  // an old grant takes nothing back and gives nothing
    packet.set(header);
    net.give(packet);
    EXPECT_TRUE(slots_of(net.poll(0)).empty());
  }
}

/// Grants as their receivers last heard them, and a judge of every DATA packet.
class CreditWatch {
 public:
  int judge(const Packet& packet) {
    const tarpon_header header = packet.header();
    if (header.type == TARPON_DATA) {
      const std::uint32_t granted = std::max(4u, heard_[{packet.from, packet.to, header.stage}]);
      EXPECT_LT(header.slot, granted) << packet.from << " -> " << packet.to;
    }
    return 1;
  }
  void delivered(const Packet& packet) {
    const tarpon_header header = packet.header();
    if (header.type == TARPON_READY) {
      tarpon_ready ready;
      std::memcpy(&ready, packet.payload().data(), sizeof ready);
      for (std::uint8_t i = 0; i < TARPON_MAX_STAGES; ++i) raise(packet, i, ready.grant[i]);
    } else if (header.type == TARPON_CREDIT || header.type == TARPON_REPAIR) {
      raise(packet, header.stage, header.slot);
    }
  }

 private:
  void raise(const Packet& packet, std::uint8_t stage, std::uint32_t grant) {
    std::uint32_t& known = heard_[{packet.to, packet.from, stage}];
    known = std::max(known, grant);
  }
  std::map<std::tuple<Rank, Rank, std::uint8_t>, std::uint32_t> heard_;
};

TEST(EndpointTest, credit__is_never_exceeded_and_is_extended_to_the_end_under_loss) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    PortCapabilities port = plain_port();
    port.receive_bytes = 2 * 8 * (kSlot + 64);  // 8 slots a message: many extensions
    Harness net(3, small_options(), port);
    std::vector<Call*> calls;
    for (Rank rank = 0; rank < 3; ++rank) {
      calls.push_back(&net.submit(exchange(rank, 3, 100 * kSlot - 5), rank));
    }
    CreditWatch watch;
    net.run_until(net.now + 5s, [&](const Packet& packet) {
      watch.judge(packet);
      if (random.chance(0.2)) return 0;
      watch.delivered(packet);
      return random.chance(0.1) ? 2 : 1;
    });
    for (Rank rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(net.count(rank, kClosed), 1u);
      for (Rank peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(calls[rank]->sinks[0]->bytes[peer], 100 * kSlot - 5);
      }
      EXPECT_TRUE(net[rank].view(calls[rank]->handle).sent(0));
    }
  }
}

TEST(EndpointTest, credits_out__counts_every_credit_packet) {
  PortCapabilities port = plain_port();
  port.receive_bytes = 2 * 8 * (kSlot + 64);  // 8 slots a message: many extensions
  Harness net(2, small_options(), port);
  for (Rank rank = 0; rank < 2; ++rank) net.submit(exchange(rank, 2, 100 * kSlot), rank);
  std::array<std::uint64_t, 2> seen{};
  net.run_until(net.now + 1s, [&](const Packet& packet) {
    if (packet.header().type == TARPON_CREDIT) ++seen[packet.from];
    return 1;
  });
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_GT(seen[rank], 10u);
    EXPECT_EQ(net[rank].counters().credits_out, seen[rank]);
  }
}

}  // namespace
}  // namespace tarpon::endpoint_credit_test
