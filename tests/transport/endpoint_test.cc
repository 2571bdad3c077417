// The protocol, packet by packet: two to four endpoints, hand-moved packets, explicit times.
#include "transport/endpoint.h"

#include <gtest/gtest.h>

#include "tests/transport/endpoint_harness.h"
#include "transport/random.h"

namespace tarpon {
namespace {

using testing_support::Call;
using testing_support::exchange;
using testing_support::from_zero;
using testing_support::Harness;
using testing_support::kSlot;
using testing_support::of_type;
using testing_support::Packet;
using testing_support::Packets;
using testing_support::plain_port;
using testing_support::small_options;
using testing_support::total_dropped;

constexpr Event::Kind kClosed = Event::Kind::stage_closed;
constexpr std::uint64_t kFew = 3 * kSlot;    // within the initial credit of 4 slots
constexpr std::uint64_t kMany = 20 * kSlot;  // beyond it

std::vector<std::uint32_t> slots_of(const Packets& packets) {
  std::vector<std::uint32_t> slots;
  for (const Packet& packet : of_type(packets, TARPON_DATA)) slots.push_back(packet.header().slot);
  return slots;
}

/// Both ranks of a pair have the whole message.
void expect_exchanged(Harness& net, const Call& a, const Call& b, std::uint64_t bytes) {
  EXPECT_EQ(a.sinks[0]->bytes.at(1), bytes);
  EXPECT_EQ(b.sinks[0]->bytes.at(0), bytes);
  for (Rank rank = 0; rank < 2; ++rank) {
    const auto closed = net.events_of(rank, kClosed);
    ASSERT_EQ(closed.size(), 1u);
    EXPECT_TRUE(closed[0].complete);
  }
}

// -- numbers and windows
// ---------------------------------------------------------------------------

TEST(EndpointTest, submit__numbers_count_per_tag_within_the_window) {
  Harness net(2);
  const std::uint32_t window = small_options().window;
  std::vector<OperationHandle> handles;
  for (std::uint32_t i = 0; i < window; ++i) {
    EXPECT_TRUE(net[0].can_submit(5));
    EXPECT_EQ(net[0].next_number(5), i);
    handles.push_back(net.submit(exchange(0, 2, kFew, 1, 5), 0).handle);
  }
  EXPECT_FALSE(net[0].can_submit(5));
  EXPECT_TRUE(net[0].can_submit(6));
  EXPECT_EQ(net[0].next_number(6), 0u);
  // Closing a later one does not move the window: the lowest open one bounds it.
  net[0].close(handles[3], nullptr);
  EXPECT_FALSE(net[0].can_submit(5));
  net[0].close(handles[0], nullptr);
  EXPECT_TRUE(net[0].can_submit(5));
  EXPECT_EQ(net[0].next_number(5), window);
}

TEST(EndpointDeathTest, submit__beyond_the_window_stops_the_program) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Harness net(2);
  for (std::uint32_t i = 0; i < small_options().window; ++i) net.submit(exchange(0, 2, kFew), 0);
  EXPECT_DEATH(net.submit(exchange(0, 2, kFew), 0), "within the window");
}

TEST(EndpointTest, receive__data_beyond_the_window_is_dropped_the_last_in_it_parked) {
  Harness net(2);
  net.submit(exchange(0, 2, kFew), 0);
  Packet packet = of_type(net.poll(0), TARPON_DATA)[0];
  const std::uint32_t window = small_options().window;
  tarpon_header header = packet.header();
  header.operation = window;
  packet.set(header);
  net.give(packet);
  EXPECT_EQ(net.dropped(1, DropReason::outside_window), 1u);
  header.operation = window - 1;
  packet.set(header);
  net.give(packet);
  EXPECT_EQ(net.dropped(1, DropReason::outside_window), 1u);
  EXPECT_EQ(net[1].counters().parked, 1u);
}

TEST(EndpointTest, receive__data_of_a_closed_operation_is_dropped_its_tail_answered) {
  Harness net(2);
  net.submit(exchange(0, 2, kFew), 0);
  const Packets late = net.poll(0);
  Call& b = net.submit(exchange(1, 2, kFew), 1);
  net[1].close(b.handle, nullptr);
  net.poll(1);
  net.give(late);
  EXPECT_EQ(net.dropped(1, DropReason::closed), 3u);
  const Packets answer = net.poll(1);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].header().type, TARPON_CLOSED);
  EXPECT_EQ(answer[0].header().closed_below, 1);
}

TEST(EndpointTest, receive__numbers_go_on_where_closed_below_wraps) {
  Harness net(2);
  for (int i = 0; i < 66'000; ++i) {
    Call& a = net.submit(exchange(0, 2, 1), 0);
    Call& b = net.submit(exchange(1, 2, 1), 1);
    net.settle();
    ASSERT_EQ(net.events[0].size(), 1u) << "operation " << i;
    ASSERT_EQ(net.events[1].size(), 1u) << "operation " << i;
    net.events[0].clear();
    net.events[1].clear();
    auto kept = std::make_unique<Retained>();
    kept->bytes.resize(1);
    kept->contributors = {1};
    net[0].close(a.handle, std::move(kept));
    net[1].close(b.handle, nullptr);
  }
  EXPECT_EQ(total_dropped(net[0].counters()) + total_dropped(net[1].counters()), 0u);
  // Whatever was retained has been released but for what the last packets could not know yet.
  EXPECT_TRUE(net[0].may_retain(0, (64ull << 20) - 2));
}

// -- early packets
// ---------------------------------------------------------------------------------

TEST(EndpointTest, early__packets_within_the_initial_credit_are_replayed_at_submit) {
  Harness net(2);
  Call& a = net.submit(exchange(0, 2, kFew), 0);
  net.settle();
  EXPECT_EQ(net[1].counters().parked, 3u);
  Call& b = net.submit(exchange(1, 2, kFew), 1);
  EXPECT_EQ(b.sinks[0]->bytes[0], kFew);
  net.settle();
  expect_exchanged(net, a, b, kFew);
  EXPECT_EQ(total_dropped(net[1].counters()), 0u);
}

TEST(EndpointTest, early__beyond_the_initial_credit_is_dropped_and_asked_for_again) {
  EndpointOptions generous = small_options();
  generous.initial_credit = 8;
  Harness flood(2, generous);  // believes in more credit than the receiver has reserved
  flood.submit(exchange(0, 2, 8 * kSlot), 0);
  Harness net(2);
  Call& a = net.submit(exchange(0, 2, 8 * kSlot), 0);
  const Packets early = of_type(flood.poll(0), TARPON_DATA);
  ASSERT_EQ(early.size(), 8u);
  net.give(early);
  EXPECT_EQ(net[1].counters().parked, 4u);
  EXPECT_EQ(net.dropped(1, DropReason::early_overrun), 4u);
  Call& b = net.submit(exchange(1, 2, 8 * kSlot), 1);
  EXPECT_EQ(b.sinks[0]->bytes[0], 4 * kSlot);
  net.run_until(net.now + 1s);
  expect_exchanged(net, a, b, 8 * kSlot);
}

TEST(EndpointTest, early__operations_beyond_the_limit_are_dropped) {
  EndpointOptions options = small_options();
  options.early_operations = 2;
  Harness net(2, options);
  for (std::uint32_t tag = 0; tag < 3; ++tag) net.submit(exchange(0, 2, kSlot, 1, tag), 0);
  net.settle();
  EXPECT_EQ(net[1].counters().parked, 2u);
  EXPECT_EQ(net.dropped(1, DropReason::early_overrun), 1u);
  for (std::uint32_t tag = 0; tag < 3; ++tag) net.submit(exchange(1, 2, kSlot, 1, tag), 1);
  net.run_until(net.now + 200ms);
  EXPECT_EQ(net.count(1, kClosed), 3u);  // the third one by repair
  EXPECT_EQ(net.count(0, kClosed), 3u);
}

// -- announcements
// ---------------------------------------------------------------------------------

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
// ----------------------------------------------------------------------------------------

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
      EXPECT_TRUE(net[rank].sent(calls[rank]->handle, 0));
    }
  }
}

// -- repair
// ----------------------------------------------------------------------------------------

TEST(EndpointTest, repair__a_gap_is_asked_for_after_the_gap_delay_and_only_it) {
  Harness net(2);
  Call& a = net.submit(exchange(0, 2, kFew), 0);
  Call& b = net.submit(exchange(1, 2, kFew), 1);
  net.settle(
      [](const Packet& packet) { return packet.to == 1 && packet.header().slot == 1 ? 0 : 1; });
  const EndpointOptions options = small_options();
  const Time lost = net.now;
  net.now = lost + options.gap_delay - 1ns;
  net.tick(1);
  EXPECT_TRUE(net.poll(1).empty());
  EXPECT_LE(net[1].next_deadline(), lost + options.gap_delay);
  net.now = lost + options.gap_delay;
  net.tick(1);
  const Packets repairs = net.poll(1);
  ASSERT_EQ(repairs.size(), 1u);
  EXPECT_EQ(repairs[0].header().type, TARPON_REPAIR);
  ASSERT_EQ(repairs[0].ranges().size(), 1u);
  EXPECT_EQ(repairs[0].ranges()[0].first, 1u);
  EXPECT_EQ(repairs[0].ranges()[0].count, 1u);
  net.give(repairs);
  const Packets answer = net.poll(0);
  ASSERT_EQ(slots_of(answer), (std::vector<std::uint32_t>{1}));
  EXPECT_NE(answer[0].header().flags & TARPON_FLAG_REPAIR, 0);
  net.give(answer);
  expect_exchanged(net, a, b, kFew);
  EXPECT_EQ(net[0].counters().repaired_slots, 1u);
  EXPECT_EQ(net[1].counters().repairs_requested, 1u);
}

TEST(EndpointTest, repair__a_silent_tail_is_asked_for_with_back_off) {
  Harness net(2);
  Call& a = net.submit(exchange(0, 2, kFew), 0);
  Call& b = net.submit(exchange(1, 2, kFew), 1);
  net.settle(
      [](const Packet& packet) { return packet.to == 1 && packet.header().slot == 2 ? 0 : 1; });
  const Time start = net.now;
  std::vector<Duration> asked;
  net.run_until(start + 600ms, [&](const Packet& packet) {
    if (packet.header().type == TARPON_REPAIR) asked.push_back(net.now - start);
    return 0;
  });
  // Answers do not come: 10 ms of silence, then waits of 20, 40, 80, 100, 100 ms.
  EXPECT_EQ(asked, (std::vector<Duration>{10ms, 30ms, 70ms, 150ms, 250ms, 350ms, 450ms, 550ms}));
  net.run_until(start + 700ms);
  expect_exchanged(net, a, b, kFew);
}

TEST(EndpointTest, repair__nothing_is_asked_for_where_the_stage_forbids_it) {
  Harness net(2);
  for (Rank rank = 0; rank < 2; ++rank) {
    auto call = exchange(rank, 2, kFew);
    call->spec.bounded = true;
    call->spec.bounds[0] = 300ms;
    call->spec.stages[0].repair = false;
    net.submit(std::move(call), rank);
  }
  net.run_until(net.now + 500ms, [](const Packet& packet) {
    EXPECT_NE(packet.header().type, TARPON_REPAIR);
    return packet.header().slot == 1 ? 0 : 1;
  });
  for (Rank rank = 0; rank < 2; ++rank) {
    const auto closed = net.events_of(rank, kClosed);
    ASSERT_EQ(closed.size(), 1u);
    EXPECT_FALSE(closed[0].complete);
  }
}

// Every loss pattern of the first 8 packets towards rank 1.
TEST(EndpointTest, repair__recovers_from_every_mask_of_lost_packets) {
  for (std::uint32_t mask = 0; mask < 256; ++mask) {
    Harness net(2);
    Call& a = net.submit(exchange(0, 2, 6 * kSlot), 0);
    Call& b = net.submit(exchange(1, 2, 6 * kSlot), 1);
    std::uint32_t number = 0;
    net.run_until(net.now + 1s, [&](const Packet& packet) {
      if (packet.to != 1 || number >= 8) return 1;
      return static_cast<int>(mask >> number++ & 1) ^ 1;
    });
    SCOPED_TRACE("mask " + std::to_string(mask));
    expect_exchanged(net, a, b, 6 * kSlot);
  }
}

TEST(EndpointTest, duplicates__are_counted_and_never_delivered_twice) {
  Harness net(3);
  std::vector<Call*> calls;
  for (Rank rank = 0; rank < 3; ++rank) {
    calls.push_back(&net.submit(exchange(rank, 3, kMany), rank));
  }
  net.run_until(net.now + 1s, [](const Packet&) { return 3; });
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(net.count(rank, kClosed), 1u);
    EXPECT_EQ(calls[rank]->sinks[0]->order.size(), 40u);  // the sink itself refuses a second time
    EXPECT_GT(net.dropped(rank, DropReason::duplicate), 0u);
  }
}

// -- order of delivery
// -----------------------------------------------------------------------------

TEST(EndpointTest, ordered__slots_wait_for_their_turn) {
  Harness net(3);
  auto spec = exchange(0, 3, kFew);  // receives from 1, then from 2
  spec->spec.stages[0].ordered = true;
  Call& a = net.submit(std::move(spec), 0);
  net.submit(exchange(1, 3, kFew), 1);
  net.submit(exchange(2, 3, kFew), 2);
  const auto to_zero = [](Packets packets) {
    std::erase_if(packets, [](const Packet& packet) { return packet.to != 0; });
    return packets;
  };
  const Packets one = to_zero(net.poll(1));
  const Packets two = to_zero(net.poll(2));
  net.give(two);
  EXPECT_TRUE(a.sinks[0]->order.empty());
  EXPECT_EQ(net[0].counters().parked, 3u);
  EXPECT_EQ(net[0].progress(a.handle, 0, 2).received, 3u);
  net.give(two[1]);
  EXPECT_EQ(net.dropped(0, DropReason::duplicate), 1u);
  net.give({one[1], one[0], one[2]});
  using Order = std::vector<std::pair<Rank, std::uint32_t>>;
  EXPECT_EQ(a.sinks[0]->order, (Order{{1, 1}, {2, 1}, {1, 0}, {2, 0}, {1, 2}, {2, 2}}));
  EXPECT_EQ(net.count(0, kClosed), 1u);
}

TEST(EndpointTest, ordered__what_finds_no_cell_is_asked_for_again) {
  PortCapabilities port = plain_port();
  port.receive_bytes = 0;  // only the cells of early operations: 2 x 1 x 3 ranks
  EndpointOptions options = small_options();
  options.initial_credit = 1;
  Harness net(3, options, port);
  Harness flood(3);  // grants itself 4 slots
  auto spec = exchange(0, 3, 8 * kSlot);
  spec->spec.stages[0].ordered = true;
  Call& a = net.submit(std::move(spec), 0);
  flood.submit(exchange(2, 3, 8 * kSlot), 2);
  Packet packet = of_type(flood.poll(2), TARPON_DATA)[0];
  for (std::uint32_t slot = 0; slot < 8; ++slot) {
    tarpon_header header = packet.header();
    header.slot = slot;
    packet.to = 0;
    packet.set(header);
    std::array<std::byte, kSlot> payload;
    for (std::uint32_t i = 0; i < kSlot; ++i) {
      payload[i] = testing_support::pattern(2, 0, 0, std::uint64_t{slot} * kSlot + i);
    }
    packet.set_payload(payload.data(), payload.size());
    net.give(packet);
  }
  EXPECT_EQ(net.dropped(0, DropReason::parking_overrun), 2u);
  net.submit(exchange(1, 3, 8 * kSlot), 1);
  net.submit(exchange(2, 3, 8 * kSlot), 2);
  net.run_until(net.now + 2s);
  EXPECT_EQ(net.count(0, kClosed), 1u);
  EXPECT_EQ(a.sinks[0]->order.size(), 16u);
}

// -- bounds and deadlines
// --------------------------------------------------------------------------

std::unique_ptr<Call> bounded(Rank rank, std::uint16_t world, std::uint8_t stages, Duration bound) {
  auto call = exchange(rank, world, kFew, stages);
  call->spec.bounded = true;
  call->spec.bounds.fill(bound);
  call->spec.deadline = Time(1s) + 10s;
  return call;
}

TEST(EndpointTest, bounded__each_stage_closes_at_its_bound) {
  Harness net(2);
  Call& a = net.submit(bounded(0, 2, 2, 50ms), 0);
  const Time start = net.now;
  const auto lose = [](const Packet&) { return 0; };
  net.run_until(start + 50ms - 1ns, lose);
  EXPECT_EQ(net.count(0, kClosed), 0u);
  EXPECT_LE(net[0].next_deadline(), start + 50ms);
  net.run_until(start + 50ms, lose);
  ASSERT_EQ(net.count(0, kClosed), 1u);
  EXPECT_EQ(net.events[0][0].stage, 0);
  EXPECT_FALSE(net.events[0][0].complete);
  net.run_until(start + 100ms - 1ns, lose);
  EXPECT_EQ(net.count(0, kClosed), 1u);
  net.run_until(start + 100ms, lose);
  ASSERT_EQ(net.count(0, kClosed), 2u);
  EXPECT_EQ(net.events[0][1].stage, 1);
  // What comes for a closed stage is dropped.
  net.submit(bounded(1, 2, 2, 50ms), 1);
  net.give(net.poll(1));
  EXPECT_EQ(net.dropped(0, DropReason::closed), 6u);
  EXPECT_TRUE(a.sinks[0]->order.empty());
}

TEST(EndpointTest, bounded__the_clock_starts_when_half_of_the_ranks_have_begun) {
  for (const std::uint16_t world : std::initializer_list<std::uint16_t>{3, 4, 5, 8}) {
    SCOPED_TRACE("world " + std::to_string(world));
    Harness net(world);
    net.submit(bounded(0, world, 1, 50ms), 0);
    const auto lose = [](const Packet&) { return 0; };
    const int needed = (world + 1) / 2 - 1;  // beside itself
    for (int i = 1; i <= needed; ++i) {
      net.run_until(net.now + 200ms, lose);
      EXPECT_EQ(net.count(0, kClosed), 0u) << i << " of " << needed;
      const auto peer = static_cast<Rank>(i);
      net.submit(bounded(peer, world, 1, 50ms), peer);
      for (const Packet& packet : net.poll(peer)) {
        if (packet.to != 0) continue;
        net.give(packet);
        break;
      }
    }
    const Time start = net.now;
    net.run_until(start + 50ms - 1ns, lose);
    EXPECT_EQ(net.count(0, kClosed), 0u);
    net.run_until(start + 50ms, lose);
    EXPECT_EQ(net.count(0, kClosed), 1u);
  }
}

TEST(EndpointTest, bounded__an_early_announcement_counts_from_the_submit_on) {
  Harness net(4);
  net.submit(bounded(1, 4, 1, 50ms), 1);
  net.run_until(net.now + 300ms);
  net.submit(bounded(0, 4, 1, 50ms), 0);
  const Time start = net.now;
  const auto lose = [](const Packet&) { return 0; };
  net.run_until(start + 49ms, lose);
  EXPECT_EQ(net.count(0, kClosed), 0u);
  net.run_until(start + 50ms, lose);
  EXPECT_EQ(net.count(0, kClosed), 1u);
}

TEST(EndpointTest, bounded__a_sender_that_has_passed_ends_the_wait) {
  Harness net(2);
  auto call = bounded(0, 2, 1, 5s);
  call->spec.stages[0].repair = false;
  net.submit(std::move(call), 0);
  Call& b = net.submit(bounded(1, 2, 1, 5s), 1);
  net.give(net.poll(1)[0]);  // the others are lost
  net[1].close(b.handle, nullptr);
  net.submit(bounded(1, 2, 1, 5s), 1);
  EXPECT_EQ(net.count(0, kClosed), 0u);
  net.give(net.poll(1)[0]);  // of the next operation: closed_below tells
  const auto closed = net.events_of(0, kClosed);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_FALSE(closed[0].complete);
}

TEST(EndpointTest, bounded__the_deadline_bounds_the_stages_and_comes_after_them) {
  Harness net(2);
  auto call = bounded(0, 2, 2, 50ms);
  call->spec.deadline = net.now + 70ms;
  net.submit(std::move(call), 0);
  net.run_until(net.now + 200ms, [](const Packet&) { return 0; });
  ASSERT_EQ(net.events[0].size(), 3u);
  EXPECT_EQ(net.events[0][0].kind, kClosed);
  EXPECT_EQ(net.events[0][1].kind, kClosed);
  EXPECT_EQ(net.events[0][2].kind, Event::Kind::deadline);
}

TEST(EndpointTest, bounded__lost_grants_are_repeated_where_nothing_may_be_asked_for_again) {
  Harness net(2);
  std::vector<Call*> calls;
  for (Rank rank = 0; rank < 2; ++rank) {
    auto call = exchange(rank, 2, kMany);
    call->spec.bounded = true;
    call->spec.bounds[0] = 1s;
    call->spec.stages[0].repair = false;
    calls.push_back(&net.submit(std::move(call), rank));
  }
  const Time start = net.now;
  net.run_until(start + 300ms, [&](const Packet& packet) {
    // The first announcements and grants are lost, no DATA is.
    return packet.header().type != TARPON_DATA && net.now < start + 15ms ? 0 : 1;
  });
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(calls[rank]->sinks[0]->bytes[static_cast<Rank>(1 - rank)], kMany);
    EXPECT_EQ(net.count(rank, kClosed), 1u);
  }
}

TEST(EndpointTest, deadline__is_told_exactly_once_at_its_time) {
  for (const bool is_bounded : {false, true}) {
    Harness net(4);
    auto call = exchange(0, 4, kMany);
    call->spec.bounded = is_bounded;
    call->spec.bounds.fill(10ms);
    call->spec.deadline = net.now + 77ms;
    net.submit(std::move(call), 0);
    const Time end = net.now + 77ms;
    const auto lose = [](const Packet&) { return 0; };
    net.run_until(end - 1ns, lose);
    EXPECT_EQ(net.count(0, Event::Kind::deadline), 0u);
    EXPECT_LE(net[0].next_deadline(), end);
    net.run_until(end, lose);
    EXPECT_EQ(net.count(0, Event::Kind::deadline), 1u);
    net.run_until(end + 5s, lose);
    EXPECT_EQ(net.count(0, Event::Kind::deadline), 1u);
    EXPECT_EQ(net.count(0, kClosed), 0u);
  }
}

TEST(EndpointTest, deadline__a_jump_of_the_clock_tells_it_once) {
  Harness net(2);
  auto call = exchange(0, 2, kMany);
  call->spec.deadline = net.now + 77ms;
  net.submit(std::move(call), 0);
  net.now += 24h;
  net.tick(0);
  net.tick(0);
  EXPECT_EQ(net.count(0, Event::Kind::deadline), 1u);
}

// -- disagreement
// ----------------------------------------------------------------------------------

TEST(EndpointTest, mismatch__both_sides_learn_the_others_signature_and_add_nothing) {
  for (const std::uint64_t bytes : {kFew, kMany}) {
    for (const bool early : {false, true}) {
      Harness net(2);
      auto mine = exchange(0, 2, bytes);
      auto theirs = exchange(1, 2, bytes);
      mine->spec.signature[7] = 0xaa;
      theirs->spec.signature[7] = 0xbb;
      Call& a = net.submit(std::move(mine), 0);
      if (early) net.run_until(net.now + 50ms);
      Call& b = net.submit(std::move(theirs), 1);
      net.run_until(net.now + 300ms);
      for (Rank rank = 0; rank < 2; ++rank) {
        const auto told = net.events_of(rank, Event::Kind::mismatch);
        ASSERT_EQ(told.size(), 1u) << "rank " << rank << " bytes " << bytes << " early " << early;
        EXPECT_EQ(told[0].peer, 1 - rank);
        EXPECT_EQ(told[0].signature[7], rank == 0 ? 0xbb : 0xaa);
        EXPECT_EQ(net.count(rank, kClosed), 0u);
        EXPECT_GT(net.dropped(rank, DropReason::mismatch), 0u);
      }
      EXPECT_TRUE(a.sinks[0]->order.empty());
      EXPECT_TRUE(b.sinks[0]->order.empty());
    }
  }
}

TEST(EndpointTest, mismatch__is_told_under_loss_of_every_second_packet) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    Harness net(2);
    for (Rank rank = 0; rank < 2; ++rank) {
      auto call = exchange(rank, 2, kMany);
      call->spec.signature[7] = static_cast<std::uint8_t>(rank);
      net.submit(std::move(call), rank);
    }
    net.run_until(net.now + 10s, [&](const Packet&) { return random.chance(0.5) ? 0 : 1; });
    for (Rank rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(net.count(rank, Event::Kind::mismatch), 1u) << "seed " << seed << " rank " << rank;
    }
  }
}

TEST(EndpointTest, abort__is_told_with_its_reason_and_ends_the_sending) {
  Harness net(3);
  Call& a = net.submit(exchange(0, 3, kMany), 0);
  net.submit(exchange(1, 3, kMany), 1);
  net.submit(exchange(2, 3, kMany), 2);
  net[0].abort(a.handle, 42);
  const Packets packets = net.poll(0);
  EXPECT_EQ(packets.size(), 2u);
  net.give(packets);
  for (Rank rank = 1; rank < 3; ++rank) {
    const auto told = net.events_of(rank, Event::Kind::aborted);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].peer, 0);
    EXPECT_EQ(told[0].reason, 42u);
  }
  EXPECT_TRUE(net[0].idle());
}

// -- retention
// -------------------------------------------------------------------------------------

std::unique_ptr<Retained> keep(const Packets& sent, std::uint64_t bytes) {
  auto retained = std::make_unique<Retained>();
  retained->bytes.resize(bytes);
  for (const Packet& packet : of_type(sent, TARPON_DATA)) {
    std::copy(packet.payload().begin(), packet.payload().end(),
              retained->bytes.begin() +
                  static_cast<std::ptrdiff_t>(packet.header().slot * std::size_t{kSlot}));
  }
  retained->contributors.assign((bytes + kSlot - 1) / kSlot, 1);
  return retained;
}

TEST(EndpointTest, retention__a_closed_operation_is_served_until_all_have_passed) {
  constexpr std::uint64_t kBytes = kFew - 10;  // a short last slot
  Harness net(2);
  Call& a = net.submit(from_zero(0, 2, kBytes), 0);
  Call& b = net.submit(from_zero(1, 2, kBytes), 1);
  const Packets lost = net.poll(0);
  ASSERT_EQ(lost.size(), 3u);
  net.give(lost[1]);
  net[0].close(a.handle, keep(lost, kBytes));
  EXPECT_FALSE(net[0].idle());
  net.run_until(net.now + 100ms);
  EXPECT_EQ(b.sinks[0]->bytes[0], kBytes);
  EXPECT_EQ(net.count(1, kClosed), 1u);
  EXPECT_EQ(net[0].counters().repaired_slots, 2u);

  // Still kept: rank 1 has not said that it has passed.
  EXPECT_FALSE(net[0].idle());
  net[1].close(b.handle, nullptr);
  net.submit(exchange(1, 2, kFew), 1);
  net.give(net.poll(1)[0]);
  EXPECT_TRUE(net[0].may_retain(0, 64ull << 20));
  EXPECT_TRUE(net[0].idle());
}

TEST(EndpointTest, retention__a_request_for_what_is_not_kept_is_unexpected) {
  Harness net(2);
  Call& a = net.submit(from_zero(0, 2, kFew), 0);
  net.submit(from_zero(1, 2, kFew), 1);
  const Packets sent = net.poll(0);
  net.give(sent[0]);
  net.now += 50ms;
  net.tick(1);
  Packets repairs = of_type(net.poll(1), TARPON_REPAIR);
  ASSERT_EQ(repairs.size(), 1u);
  net[0].close(a.handle, keep(sent, kFew));
  tarpon_header header = repairs[0].header();
  header.stage = 1;
  Packet other = repairs[0];
  other.set(header);
  net.give(other);
  header.stage = 0;
  header.signature ^= 1;
  other.set(header);
  net.give(other);
  EXPECT_EQ(net.dropped(0, DropReason::unexpected), 2u);
  EXPECT_TRUE(net.poll(0).empty());

  // Ranges are cut to what exists; sums of wire values do not wrap around.
  const std::array<tarpon_range, 4> ranges{{{1, 0xffffffff}, {3, 1}, {0xffffffff, 2}, {2, 0}}};
  repairs[0].set_payload(ranges.data(), sizeof ranges);
  net.give(repairs[0]);
  EXPECT_EQ(slots_of(net.poll(0)), (std::vector<std::uint32_t>{1, 2}));
}

TEST(EndpointTest, retention__may_retain_within_the_limit_but_for_the_newest) {
  EndpointOptions options = small_options();
  options.retain_bytes = 1000;
  Harness net(2, options);
  const auto close_with = [&](std::uint32_t tag, std::uint64_t bytes) {
    Call& call = net.submit(from_zero(0, 2, kFew), 0);
    (void)tag;
    net[0].close(call.handle, keep({}, bytes));
  };
  EXPECT_TRUE(net[0].may_retain(0, 1'000'000));
  close_with(0, 600);
  EXPECT_TRUE(net[0].may_retain(0, 400));
  EXPECT_FALSE(net[0].may_retain(0, 401));
  EXPECT_TRUE(net[0].may_retain(1, 1'000'000)) << "the first result of another tag";
}

TEST(EndpointTest, retention__a_requested_slot_survives_the_release) {
  Harness net(2);
  Call& a = net.submit(from_zero(0, 2, kFew), 0);
  Call& b = net.submit(from_zero(1, 2, kFew), 1);
  const Packets sent = net.poll(0);
  net.give(sent[0]);
  net[0].close(a.handle, keep(sent, kFew));
  net.now += 50ms;
  net.tick(1);
  net.give(net.poll(1));  // the request is queued, not yet answered
  net[1].close(b.handle, nullptr);
  net.submit(exchange(1, 2, kFew), 1);
  net.give(net.poll(1));  // rank 1 has passed: the bytes are gone
  EXPECT_TRUE(slots_of(net.poll(0)).empty());
  EXPECT_TRUE(net[0].idle());
}

// -- acknowledgement, sending, accounting
// ----------------------------------------------------------

TEST(EndpointTest, acknowledge__receivers_confirm_the_whole_message) {
  Harness net(3);
  std::vector<Call*> calls;
  for (Rank rank = 0; rank < 3; ++rank) {
    auto call = exchange(rank, 3, kMany);
    call->spec.stages[0].acknowledge = true;
    calls.push_back(&net.submit(std::move(call), rank));
    EXPECT_FALSE(net[rank].acknowledged(calls[rank]->handle, 0));
    EXPECT_FALSE(net[rank].sent(calls[rank]->handle, 0));
  }
  net.run_until(net.now + 100ms);
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(net[rank].acknowledged(calls[rank]->handle, 0));
    EXPECT_TRUE(net[rank].sent(calls[rank]->handle, 0));
    EXPECT_EQ(net.count(rank, Event::Kind::acknowledged), 1u);
  }
}

TEST(EndpointTest, advance__only_ready_slots_go_out_and_it_never_lowers) {
  Harness net(2);
  auto call = from_zero(0, 2, kFew);
  call->spec.stages[0].ready = 0;
  Call& a = net.submit(std::move(call), 0);
  EXPECT_TRUE(slots_of(net.poll(0)).empty());
  net[0].advance(a.handle, 0, 2);
  EXPECT_EQ(slots_of(net.poll(0)), (std::vector<std::uint32_t>{0, 1}));
  net[0].advance(a.handle, 0, 1);
  EXPECT_TRUE(slots_of(net.poll(0)).empty());
  net[0].advance(a.handle, 0, testing_support::kMaxPayload);
  EXPECT_EQ(slots_of(net.poll(0)), (std::vector<std::uint32_t>{2}));
}

TEST(EndpointTest, transmit__the_same_packets_whatever_the_number_of_frames) {
  std::vector<Packets> all;
  for (const std::size_t frames : {1u, 2u, 3u, 16u, 100u}) {
    Harness net(2, small_options(), [] {
      PortCapabilities port = plain_port();
      port.burst = 4;
      return port;
    }());
    net.submit(exchange(1, 2, kMany), 1);
    const Packets theirs = net.poll(1);
    net.submit(exchange(0, 2, kMany), 0);
    net.tick(1);
    net.give(net.poll(1));
    net.give(theirs);
    all.push_back(of_type(net.poll(0, frames), TARPON_DATA));
  }
  for (const Packets& packets : all) {
    EXPECT_EQ(slots_of(packets), slots_of(all[0]));
    EXPECT_EQ(slots_of(packets).size(), 20u);
  }
}

TEST(EndpointTest, transmit__a_gathering_port_gets_the_sources_memory) {
  for (const bool gathers : {false, true}) {
    PortCapabilities port = plain_port();
    port.gathers = gathers;
    Harness net(2, small_options(), port);
    Call& a = net.submit(exchange(0, 2, kFew), 0);
    std::array<std::byte, TARPON_HEADER_BYTES> header;
    std::array<std::byte, testing_support::kMaxPayload> room;
    TxPacket frame;
    frame.header = header.data();
    frame.room = room.data();
    ASSERT_EQ(net[0].poll_transmit(net.now, {&frame, 1}), 1u);
    EXPECT_EQ(frame.payload == room.data(), !gathers);
    if (gathers) {
      EXPECT_EQ(frame.payload, a.sources[0]->view(0).payload);
    }
  }
}

TEST(EndpointTest, counters__every_packet_is_applied_or_dropped_under_one_reason) {
  Random random(7);
  Harness net(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<Call*> calls;
    const std::uint64_t bytes = random.below(30 * kSlot);
    for (Rank rank = 0; rank < 3; ++rank) {
      calls.push_back(&net.submit(exchange(rank, 3, bytes), rank));
    }
    net.run_until(net.now + 2s, [&](const Packet&) { return static_cast<int>(random.below(3)); });
    for (Rank rank = 0; rank < 3; ++rank) net[rank].close(calls[rank]->handle, nullptr);
  }
  for (Rank rank = 0; rank < 3; ++rank) {
    const EndpointCounters& counters = net[rank].counters();
    EXPECT_EQ(counters.packets_in,
              counters.data_in + counters.control_in + total_dropped(counters));
    EXPECT_EQ(net.count(rank, kClosed), 20u);
  }
}

}  // namespace
}  // namespace tarpon
