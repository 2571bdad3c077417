// Hostile packets: each class is dropped under its own reason, changes nothing and is not answered.
// Afterwards the operation still ends, complete and exact.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/support/endpoint_harness.h"
#include "transport/random.h"

namespace tarpon::hostile_packets_test {
namespace {

using testing_support::Call;
using testing_support::exchange;
using testing_support::Harness;
using testing_support::kSlot;
using testing_support::of_type;
using testing_support::Packet;
using testing_support::Packets;
using testing_support::small_options;

constexpr std::uint64_t kBytes = 9 * kSlot + 24;  // 10 slots, the last one short

/// Two ranks in the middle of an exchange: rank 1 has slot 0 of 10.
struct Scene {
  explicit Scene(tarpon_integrity integrity = TARPON_INTEGRITY_UDP) : net(3, options(integrity)) {
    for (Rank rank = 0; rank < 3; ++rank) {
      calls.push_back(&net.submit(exchange(rank, 3, kBytes), rank));
    }
    for (Rank rank = 0; rank < 3; ++rank) net.tick(rank);
    const Packets packets = net.poll(0);
    for (const Packet& packet : packets) {
      if (packet.to != 1) continue;
      (packet.header().type == TARPON_DATA ? data : ready).push_back(packet);
    }
    net.give(ready);
    net.give(data[0]);
    net.poll(1);
  }

  static EndpointOptions options(tarpon_integrity integrity) {
    EndpointOptions result = small_options();
    result.integrity = integrity;
    return result;
  }

  /// Gives the packet and checks that nothing but the counter of `reason` has moved.
  void expect_dropped(const Packet& packet, DropReason reason, const std::string& what) {
    const EndpointCounters before = net[1].counters();
    const MessageProgress progress = net[1].view(calls[1]->handle).progress(0, 0);
    const Time deadline = net[1].next_deadline();
    const std::size_t events = net.events[1].size();
    net.give(packet);
    const EndpointCounters& after = net[1].counters();
    EXPECT_EQ(after.packets_in, before.packets_in + 1) << what;
    for (std::size_t i = 0; i < after.dropped.size(); ++i) {
      const auto one = static_cast<DropReason>(i);
      EXPECT_EQ(after[one], before[one] + (one == reason))
          << what << ": " << drop_reason_name(one) << ", expected " << drop_reason_name(reason);
    }
    EXPECT_EQ(after.data_in, before.data_in) << what;
    EXPECT_EQ(after.control_in, before.control_in) << what;
    EXPECT_EQ(after.parked, before.parked) << what;
    EXPECT_EQ(net[1].view(calls[1]->handle).progress(0, 0).received, progress.received) << what;
    EXPECT_EQ(net[1].next_deadline(), deadline) << what;
    EXPECT_EQ(net.events[1].size(), events) << what;
    EXPECT_TRUE(net.poll(1).empty()) << what << " was answered";
  }

  /// The exchange still works.
  void expect_completion() {
    net.run_until(net.now + 1s);
    for (Rank rank = 0; rank < 3; ++rank) {
      const auto closed = net.events_of(rank, Event::Kind::stage_closed);
      ASSERT_EQ(closed.size(), 1u);
      EXPECT_EQ(closed[0].closing, Closing::complete);
      for (Rank peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(calls[rank]->sinks[0]->bytes[peer], kBytes);
      }
    }
  }

  Packet changed(const std::function<void(tarpon_header&)>& change) const {
    Packet packet = data[1];
    tarpon_header header = packet.header();
    change(header);
    packet.set(header);
    return packet;
  }

  Harness net;
  std::vector<Call*> calls;
  Packets data;  // rank 0 to rank 1; slot 0 is there already
  Packets ready;
};

TEST(HostilePacketsTest, runts__every_length_below_a_header) {
  Scene scene;
  for (std::size_t length = 0; length < TARPON_HEADER_BYTES; ++length) {
    Packet packet = scene.data[1];
    packet.bytes.resize(length);
    scene.expect_dropped(packet, DropReason::runt, std::to_string(length) + " bytes");
  }
  scene.expect_completion();
}

TEST(HostilePacketsTest, truncations__every_length_of_the_payload) {
  Scene scene;
  for (std::size_t length = TARPON_HEADER_BYTES; length < TARPON_HEADER_BYTES + kSlot; ++length) {
    Packet packet = scene.data[1];
    packet.bytes.resize(length);
    scene.expect_dropped(packet, DropReason::fields, std::to_string(length) + " bytes");
  }
  Packet longer = scene.data[1];
  longer.bytes.resize(longer.bytes.size() + 1);
  scene.expect_dropped(longer, DropReason::fields, "one byte more");
  scene.expect_completion();
}

TEST(HostilePacketsTest, headers__each_lie_has_its_reason) {
  Scene scene;
  struct Lie {
    const char* what;
    DropReason reason;
    std::function<void(tarpon_header&)> tell;
  };
  const std::vector<Lie> lies{
      {"magic", DropReason::magic, [](auto& h) { h.magic ^= 1; }},
      {"version 0", DropReason::version, [](auto& h) { h.version = 0; }},
      {"another version", DropReason::version, [](auto& h) { ++h.version; }},
      {"job", DropReason::foreign_job, [](auto& h) { h.job ^= 0x80000000; }},
      {"type 0", DropReason::type, [](auto& h) { h.type = 0; }},
      {"type end", DropReason::type, [](auto& h) { h.type = TARPON_TYPE_END; }},
      {"type 255", DropReason::type, [](auto& h) { h.type = 255; }},
      {"bit 6", DropReason::fields, [](auto& h) { h.flags |= 0x40; }},
      {"bit 7", DropReason::fields, [](auto& h) { h.flags |= 0x80; }},
      {"stage 4", DropReason::fields, [](auto& h) { h.stage = 4; }},
      {"length 0", DropReason::fields, [](auto& h) { h.length = 0; }},
      {"length 65535", DropReason::fields, [](auto& h) { h.length = 65535; }},
      {"sender: ourselves", DropReason::sender, [](auto& h) { h.sender = 1; }},
      {"sender: another rank", DropReason::sender, [](auto& h) { h.sender = 2; }},
      {"sender: world size", DropReason::sender, [](auto& h) { h.sender = 3; }},
      {"sender: 65535", DropReason::sender, [](auto& h) { h.sender = 65535; }},
      {"communicator", DropReason::communicator, [](auto& h) { h.communicator = 1; }},
      {"no integrity", DropReason::integrity, [](auto& h) { h.flags &= 0xcf; }},
      {"crc32c", DropReason::integrity, [](auto& h) { h.flags = (h.flags & 0xcf) | 0x20; }},
      {"keyed", DropReason::integrity, [](auto& h) { h.flags |= 0x30; }},
      {"incarnation", DropReason::epoch, [](auto& h) { h.incarnation = 1; }},
      {"slot count", DropReason::message, [](auto& h) { h.slot = 10; }},
      {"slot 2^31", DropReason::message, [](auto& h) { h.slot = 0x80000000; }},
      {"slot 2^32-1", DropReason::message, [](auto& h) { h.slot = 0xffffffff; }},
      {"full length in the short slot", DropReason::message, [](auto& h) { h.slot = 9; }},
      {"stage without message", DropReason::message, [](auto& h) { h.stage = 1; }},
      {"stage 3", DropReason::message, [](auto& h) { h.stage = 3; }},
      {"slot 0 again", DropReason::duplicate, [](auto& h) { h.slot = 0; }},
      {"operation W", DropReason::outside_window, [](auto& h) { h.operation = 8; }},
      {"operation 2^15-1", DropReason::outside_window, [](auto& h) { h.operation = 0x7fff; }},
      {"operation -1", DropReason::closed, [](auto& h) { h.operation = 0xffffffff; }},
      {"operation 2^31+1", DropReason::closed, [](auto& h) { h.operation = 0x80000001; }},
      {"far operation of another tag", DropReason::outside_window,
       [](auto& h) {
         h.tag = 77;
         h.operation = 8;
       }},
  };
  for (const Lie& lie : lies) {
    const Packet packet = scene.changed([&](tarpon_header& header) {
      header.flags &= static_cast<std::uint8_t>(~TARPON_FLAG_TAIL);
      lie.tell(header);
      // closed_below speaks for its sender whatever the operation: here it has closed nothing.
      if (header.operation >= 0x8000) {
        header.closed_below = static_cast<std::uint16_t>(header.operation);
      }
    });
    scene.expect_dropped(packet, lie.reason, lie.what);
  }
  scene.expect_completion();
}

TEST(HostilePacketsTest, source__the_address_decides_who_spoke) {
  Scene scene;
  Packet packet = scene.data[1];
  packet.from = 2;
  scene.expect_dropped(packet, DropReason::sender, "rank 2 in the name of rank 0");
  packet.from = kUnknownRank;
  scene.expect_dropped(packet, DropReason::sender, "a stranger in the name of rank 0");
  tarpon_header header = packet.header();
  header.sender = kUnknownRank;
  packet.set(header);
  scene.expect_dropped(packet, DropReason::sender, "a stranger in its own name");
  scene.expect_completion();
}

TEST(HostilePacketsTest, lengths__wrong_ones_with_an_honest_header) {
  Scene scene;
  const std::array<std::byte, 512> zeros{};
  for (const std::size_t length : {0u, 1u, 23u, 24u, 25u, 63u, 65u, 128u, 512u}) {
    Packet packet = scene.data[1];
    packet.set_payload(zeros.data(), length);
    scene.expect_dropped(packet, DropReason::message, std::to_string(length) + " bytes in slot 1");
    if (length == 24) continue;  // what the last slot has
    tarpon_header header = packet.header();
    header.slot = 9;
    packet.set(header);
    scene.expect_dropped(packet, DropReason::message, std::to_string(length) + " bytes in slot 9");
  }
  scene.expect_completion();
}

TEST(HostilePacketsTest, duplicates__other_bytes_in_a_known_slot_change_nothing) {
  Scene scene;
  Packet packet = scene.data[0];
  const std::array<std::byte, kSlot> other{};
  packet.set_payload(other.data(), other.size());
  scene.expect_dropped(packet, DropReason::duplicate, "slot 0 with other bytes");
  scene.expect_completion();
}

TEST(HostilePacketsTest, control__malformed_ones_are_dropped_before_they_are_read) {
  Scene scene;
  const std::array<std::byte, 512> zeros{};
  const auto control = [&](std::uint8_t type, std::size_t length) {
    Packet packet = scene.changed([type](tarpon_header& header) { header.type = type; });
    packet.set_payload(zeros.data(), length);
    return packet;
  };
  for (const std::size_t length : {0u, 1u, 24u, 39u, 41u, 512u}) {
    scene.expect_dropped(control(TARPON_READY, length), DropReason::fields, "READY");
  }
  for (const std::size_t length : {1u, 7u, 9u, 511u}) {
    scene.expect_dropped(control(TARPON_REPAIR, length), DropReason::fields, "REPAIR");
  }
  scene.expect_completion();
}

TEST(HostilePacketsTest, control__feedback_for_what_was_never_sent) {
  Scene scene;
  const auto control = [&](const std::function<void(tarpon_header&)>& change) {
    Packet packet = scene.changed([&](tarpon_header& header) {
      header.type = TARPON_CREDIT;
      header.flags &= TARPON_INTEGRITY_MASK;
      header.slot = 1;
      change(header);
    });
    packet.set_payload(nullptr, 0);
    return packet;
  };
  scene.expect_dropped(control([](auto& h) { h.stage = 1; }), DropReason::unexpected, "stage 1");
  scene.expect_dropped(control([](auto& h) {
                         h.type = TARPON_REPAIR;
                         h.operation = 0xffffffff;
                         h.closed_below = 0xffff;
                       }),
                       DropReason::unexpected, "REPAIR of an operation that never was");
  scene.expect_dropped(control([](auto& h) { h.operation = 8; }), DropReason::outside_window,
                       "CREDIT beyond the window");
  scene.expect_completion();
}

TEST(HostilePacketsTest, repair__forged_ranges_send_nothing_that_was_not_sent) {
  Scene scene;
  const std::array<tarpon_range, 6> ranges{{{0, 0xffffffff},
                                            {0xffffffff, 0xffffffff},
                                            {4, 1},
                                            {10, 1},
                                            {0x80000000, 0x80000000},
                                            {2, 0}}};
  Packet packet = scene.changed([](tarpon_header& header) {
    header.type = TARPON_REPAIR;
    header.flags &= TARPON_INTEGRITY_MASK;
    header.slot = 0;
  });
  packet.set_payload(ranges.data(), sizeof ranges);
  scene.net.give(packet);
  // Only what rank 1 had sent, each slot at most once.
  std::set<std::uint32_t> repaired;
  for (const Packet& one : of_type(scene.net.poll(1), TARPON_DATA)) {
    if ((one.header().flags & TARPON_FLAG_REPAIR) == 0) continue;
    EXPECT_EQ(one.to, 0);
    EXPECT_TRUE(repaired.insert(one.header().slot).second) << "slot " << one.header().slot;
  }
  EXPECT_FALSE(repaired.empty());
  EXPECT_LT(*repaired.rbegin(), 10u);
  scene.expect_completion();
}

TEST(HostilePacketsTest, mismatch__data_of_another_signature_is_dropped_and_answered_once) {
  Scene scene;
  const Packet packet = scene.changed([](tarpon_header& header) { header.signature ^= 1; });
  scene.net.give(packet);
  const Packets answer = scene.net.poll(1);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].header().type, TARPON_READY);
  EXPECT_EQ(scene.net.dropped(1, DropReason::mismatch), 1u);
  scene.net.give(packet);
  EXPECT_EQ(scene.net.dropped(1, DropReason::mismatch), 2u);
  EXPECT_TRUE(scene.net.poll(1).empty());
  scene.expect_completion();
}

TEST(HostilePacketsTest, mismatch__feedback_of_another_signature_is_dropped) {
  Scene scene;
  Packet packet = scene.changed([](tarpon_header& header) {
    header.type = TARPON_CREDIT;
    header.flags &= TARPON_INTEGRITY_MASK;
    header.signature ^= 1;
    header.slot = 10;
  });
  packet.set_payload(nullptr, 0);
  const EndpointCounters before = scene.net[1].counters();
  scene.net.give(packet);
  EXPECT_EQ(scene.net.dropped(1, DropReason::mismatch), 1u);
  EXPECT_EQ(scene.net[1].counters().control_in, before.control_in);
  EXPECT_TRUE(of_type(scene.net.poll(1), TARPON_DATA).empty());  // it granted nothing
  scene.expect_completion();
}

TEST(HostilePacketsTest, crc32c__every_flipped_bit_is_dropped) {
  Scene scene(TARPON_INTEGRITY_CRC32C);
  const Packet good = scene.data[1];
  for (std::size_t bit = 0; bit < good.bytes.size() * 8; ++bit) {
    Packet packet = good;
    packet.bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const EndpointCounters before = scene.net[1].counters();
    scene.net.give(packet);
    EXPECT_EQ(testing_support::total_dropped(scene.net[1].counters()),
              testing_support::total_dropped(before) + 1)
        << "bit " << bit;
    EXPECT_EQ(scene.net[1].counters().data_in, before.data_in) << "bit " << bit;
  }
  EXPECT_GT(scene.net.dropped(1, DropReason::integrity), kSlot * 8u);
  scene.expect_completion();
}

TEST(HostilePacketsTest, crc32c__a_packet_without_a_check_is_dropped) {
  Scene scene(TARPON_INTEGRITY_CRC32C);
  scene.expect_dropped(scene.changed([](tarpon_header& header) { header.check = 0; }),
                       DropReason::integrity, "check 0");
  Packet changed = scene.changed([](tarpon_header& header) { header.contributors = 0xff; });
  scene.expect_dropped(changed, DropReason::integrity, "contributors");
  scene.expect_completion();
}

// Random bytes behind a header that passes the checks without state: nothing may crash, and what is
// sent back stays bounded. Seed 1.
TEST(HostilePacketsTest, noise__a_flood_of_random_fields_breaks_nothing) {
  Random random(1);
  Harness net(3);
  std::vector<Call*> calls;
  for (Rank rank = 0; rank < 3; ++rank)
    calls.push_back(&net.submit(exchange(rank, 3, kBytes), rank));
  const std::array<std::uint32_t, 8> edges{0, 1, 7, 8, 9, 10, 0x7fffffff, 0xffffffff};
  std::uint64_t answers = 0;
  constexpr std::uint64_t kFlood = 100'000;
  for (std::uint64_t i = 0; i < kFlood; ++i) {
    Packet packet{0, 1, {}};
    packet.bytes.resize(TARPON_HEADER_BYTES);
    tarpon_header header{};
    header.magic = TARPON_MAGIC;
    header.version = TARPON_WIRE_VERSION;
    header.type = static_cast<std::uint8_t>(1 + random.below(TARPON_TYPE_END - 1));
    header.job = 0xbeef;
    header.sender = 0;
    header.tag = edges[random.below(3)];
    header.operation = edges[random.below(8)];
    header.slot = edges[random.below(8)];
    header.stage = static_cast<std::uint8_t>(random.below(4));
    header.flags = static_cast<std::uint8_t>(random.below(16) | 1u << TARPON_INTEGRITY_SHIFT);
    header.signature = static_cast<std::uint16_t>(random.next());
    header.closed_below = static_cast<std::uint16_t>(random.next());
    packet.set(header);
    std::array<std::byte, 128> payload;
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random.next());
    const std::array<std::size_t, 6> lengths{0, 8, 16, 24, sizeof(tarpon_ready), kSlot};
    packet.set_payload(payload.data(), lengths[random.below(6)]);
    net.give(packet);
    if (i % 64 == 0) answers += net.poll(1).size();
    if (i % 512 == 0) {
      net.now += 1ms;
      net.tick(1);
    }
  }
  EXPECT_EQ(net[1].counters().packets_in, kFlood);
  EXPECT_LE(answers, kFlood + 1000);
  EXPECT_TRUE(calls[1]->sinks[0]->order.empty());  // no signature was guessed
}

}  // namespace
}  // namespace tarpon::hostile_packets_test
