// Endpoints, packet by packet: repair, duplicates, order of delivery, retention.
#include "transport/endpoint.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "tests/support/endpoint_harness.h"
#include "transport/random.h"

namespace tarpon::endpoint_delivery_test {
namespace {

using namespace testing_support;

constexpr Event::Kind kClosed = Event::Kind::stage_closed;

// -- trains

/// Rank 0 has sent the first slots of a message. `packets` holds them: rank 1 has not got them yet.
struct SentTrain {
  explicit SentTrain(EndpointOptions options = small_options()) : net(2, long_credit(options)) {
    net.submit(from_zero(0, 2, kMany), 0);
    call = &net.submit(from_zero(1, 2, kMany), 1);
    net.give(of_type(net.poll(1), TARPON_READY));
    packets = of_type(net.poll(0, 64), TARPON_DATA);
  }
  static EndpointOptions long_credit(EndpointOptions options) {
    options.initial_credit = 12;
    return options;
  }
  const PatternSink& sink() const { return *call->sinks[0]; }

  Harness net;
  Call* call = nullptr;
  Packets packets;
};

TEST(EndpointDeliveryTest, train__each_slot_is_delivered) {
  SentTrain sent;
  ASSERT_EQ(sent.packets.size(), 12u);
  sent.net.give_at_once(1, sent.packets);
  EXPECT_EQ(sent.sink().bytes.at(0), 12 * kSlot);
  EXPECT_EQ(sent.net[1].counters().data_in, 12u);
}

TEST(EndpointDeliveryTest, train__a_packet_that_fails_its_checks_costs_no_other) {
  EndpointOptions options = small_options();
  options.integrity = TARPON_INTEGRITY_CRC32C;
  const auto change = [](Packet& packet, auto field, auto value) {
    tarpon_header header = packet.header();
    header.*field = value;
    packet.set(header);
  };
  const std::vector<std::pair<DropReason, std::function<void(Packet&)>>> faults{
      {DropReason::integrity, [](Packet& packet) { packet.bytes.back() ^= std::byte{1}; }},
      {DropReason::fields, [](Packet& packet) { packet.bytes.pop_back(); }},
      {DropReason::runt, [](Packet& packet) { packet.bytes.resize(10); }},
      {DropReason::sender, [](Packet& packet) { packet.from = 5; }},
      {DropReason::foreign_job,
       [&](Packet& packet) {
         change(packet, &tarpon_header::job, 1u);
         packet.seal();
       }},
      {DropReason::mismatch,
       [&](Packet& packet) {
         change(packet, &tarpon_header::signature, std::uint16_t{77});
         packet.seal();
       }},
      {DropReason::message,
       [&](Packet& packet) {
         change(packet, &tarpon_header::slot, 1000u);
         packet.seal();
       }},
      {DropReason::duplicate,
       [&](Packet& packet) {
         change(packet, &tarpon_header::slot, 0u);
         packet.seal();
       }},
  };
  for (const auto& [reason, spoil] : faults) {
    SentTrain sent(options);
    spoil(sent.packets[5]);
    sent.net.give_at_once(1, sent.packets);
    EXPECT_EQ(sent.net.dropped(1, reason), 1u) << drop_reason_name(reason);
    EXPECT_EQ(total_dropped(sent.net[1].counters()), 1u) << drop_reason_name(reason);
    EXPECT_EQ(sent.net[1].counters().data_in, 11u) << drop_reason_name(reason);
    EXPECT_EQ(sent.sink().times.count({0, 5}), 0u) << drop_reason_name(reason);
  }
}

TEST(EndpointDeliveryTest, train__any_order_of_a_batch_delivers_all) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    SentTrain sent;
    for (std::size_t i = sent.packets.size(); i > 1; --i) {
      if (random.chance(0.3)) std::swap(sent.packets[i - 1], sent.packets[random.below(i)]);
    }
    sent.net.give_at_once(1, sent.packets);
    ASSERT_EQ(sent.sink().bytes.at(0), 12 * kSlot) << round;
    ASSERT_EQ(total_dropped(sent.net[1].counters()), 0u) << round;
  }
}

// -- repair

TEST(EndpointDeliveryTest, repair__a_gap_is_asked_for_after_the_gap_delay_and_only_it) {
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

/// Between 2 ranks: messages of several ranges, whose last slots are short.
std::unique_ptr<Call> ranged(Rank rank) {
  const std::vector<std::uint64_t> ranges{30, kSlot, kSlot + 6};  // slots of 30, 64, 64 and 6 bytes
  auto call = exchange(rank, 2, 4 * kSlot);
  StageSpec& stage = call->spec.stages[0];
  stage.sends[0].bytes = stage.receives[0].bytes = 2 * kSlot + 36;
  stage.sends[0].ranges = stage.receives[0].ranges = ranges;
  return call;
}

TEST(EndpointDeliveryTest, ranges__each_starts_a_slot_whatever_is_lost) {
  for (std::uint32_t lost = 0; lost < 16; ++lost) {
    Harness net(2);
    Call& a = net.submit(ranged(0), 0);
    Call& b = net.submit(ranged(1), 1);
    net.settle([lost](const Packet& packet) {
      const tarpon_header header = packet.header();
      return header.type == TARPON_DATA && (lost >> header.slot & 1) != 0 ? 0 : 1;
    });
    std::uint64_t here = 0;
    for (std::uint32_t slot = 0; slot < 4; ++slot) {
      if ((lost >> slot & 1) == 0) here += std::array<std::uint64_t, 4>{30, 64, 64, 6}[slot];
    }
    EXPECT_EQ(net[1].view(b.handle).progress(0, 0).bytes, here) << lost;
    net.run_until(net.now + 100ms);
    expect_exchanged(net, a, b, 2 * kSlot + 36);
  }
}

TEST(EndpointDeliveryTest, ranges__a_slot_of_another_length_is_refused) {
  Harness net(2);
  net.submit(ranged(0), 0);
  Call& b = net.submit(ranged(1), 1);
  Packet forged = net.poll(0).front();
  tarpon_header header = forged.header();
  ASSERT_EQ(header.slot, 0u);
  header.slot = 1;  // it has 64 bytes, not 30
  forged.set(header);
  net.give(forged);
  EXPECT_EQ(net.dropped(1, DropReason::message), 1u);
  EXPECT_EQ(net[1].view(b.handle).progress(0, 0).received, 0u);
}

TEST(EndpointDeliveryTest, repair__a_silent_tail_is_asked_for_with_back_off) {
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

TEST(EndpointDeliveryTest, repair__nothing_is_asked_for_where_the_stage_forbids_it) {
  Harness net(2);
  for (Rank rank = 0; rank < 2; ++rank) {
    auto call = exchange(rank, 2, kFew);
    call->spec.bounded = true;
    call->bounds[0] = 300ms;
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
    EXPECT_NE(closed[0].closing, Closing::complete);
  }
}

// Every loss pattern of the first 8 packets towards rank 1.
// The sender has closed an operation that is open here still, so it may be further ahead than this
// rank takes early packets.
TEST(EndpointDeliveryTest, repair__what_came_beyond_the_window_is_asked_for_in_bounded_operations) {
  const std::uint32_t window = small_options().window;
  Harness net(2);
  const auto bounded = [](Rank rank) {
    auto call = exchange(rank, 2, kSlot);
    call->spec.bounded = true;
    call->bounds[0] = 1s;
    call->spec.stages[0].repair = false;
    return call;
  };
  const OperationHandle slow = net.submit(bounded(1), 1).handle;
  for (std::uint32_t i = 0; i < window; ++i) {
    net[0].close(net.submit(bounded(0), 0).handle, nullptr);
    net.poll(0);
  }
  net.submit(bounded(0), 0);
  net.settle();
  EXPECT_EQ(net.dropped(1, DropReason::outside_window), 1u);
  net[1].close(slow, nullptr);
  for (std::uint32_t i = 1; i < window; ++i) {
    net[1].close(net.submit(bounded(1), 1).handle, nullptr);
  }
  Call& b = net.submit(bounded(1), 1);
  net.run_until(net.now + 200ms);
  EXPECT_EQ(b.sinks[0]->bytes[0], kSlot);
}

// A rank with a longer bound would ask in vain, and never learn that it is late.
TEST(EndpointDeliveryTest, repair__of_a_stage_that_is_not_kept_is_answered_by_closed) {
  Harness net(2);
  std::array<Call*, 2> calls{};
  for (Rank rank = 0; rank < 2; ++rank) {
    auto call = exchange(rank, 2, kMany, 2);
    call->spec.bounded = true;
    call->bounds.fill(1s);
    if (rank == 0) call->spec.stages[1].ready = 0;  // it waits for what is lost
    calls[rank] = &net.submit(std::move(call), rank);
  }
  net.settle([](const Packet& packet) {
    const tarpon_header header = packet.header();
    const bool first = header.type == TARPON_DATA && tarpon_stage(&header) == 0;
    return first && packet.from == 1 && header.slot > 0 ? 0 : 1;
  });
  ASSERT_EQ(net[0].view(calls[0]->handle).progress(1, 1).received, kMany / kSlot);
  auto retained = std::make_unique<Retained>();
  retained->stage = 1;
  retained->bytes.resize(kMany);
  retained->contributors.resize(kMany / kSlot);
  net[1].close(calls[1]->handle, std::move(retained), 0b01);  // it had nothing of rank 0's stage 1
  net.run_until(net.now + 50ms);                              // a HEARTBEAT would tell it after 100
  ASSERT_EQ(net.count(0, Event::Kind::late), 1u);
  EXPECT_EQ(net.events_of(0, Event::Kind::late)[0].peer, 1);
}

TEST(EndpointDeliveryTest, repair__recovers_from_every_mask_of_lost_packets) {
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

TEST(EndpointDeliveryTest, duplicates__are_counted_and_never_delivered_twice) {
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

// -- retention

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

TEST(EndpointDeliveryTest, retention__a_closed_operation_is_served_until_all_have_passed) {
  constexpr std::uint64_t kBytes = kFew - 10;  // a short last slot
  Harness net(2);
  Call& a = net.submit(from_zero(0, 2, kBytes), 0);
  Call& b = net.submit(from_zero(1, 2, kBytes), 1);
  const Packets lost = net.poll(0);
  ASSERT_EQ(lost.size(), 3u);
  net.give(lost[1]);
  net[0].close(a.handle, keep(lost, kBytes));
  EXPECT_FALSE(net[0].memory().idle());
  net.run_until(net.now + 100ms);
  EXPECT_EQ(b.sinks[0]->bytes[0], kBytes);
  EXPECT_EQ(net.count(1, kClosed), 1u);
  EXPECT_EQ(net[0].counters().repaired_slots, 2u);

  // Still kept: rank 1 has not said that it has passed.
  EXPECT_FALSE(net[0].memory().idle());
  net[1].close(b.handle, nullptr);
  net.submit(exchange(1, 2, kFew), 1);
  net.give(net.poll(1)[0]);
  EXPECT_EQ(net[0].memory().retained_entries, 0u);
}

TEST(EndpointDeliveryTest, retention__a_request_for_what_is_not_kept_gets_an_answer) {
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
  EXPECT_EQ(of_type(net.poll(0), TARPON_CLOSED).size(), 1u);
  header.stage = 0;
  header.signature ^= 1;
  other.set(header);
  net.give(other);
  EXPECT_EQ(of_type(net.poll(0), TARPON_READY).size(), 1u);  // the signatures differ
  EXPECT_EQ(net.dropped(0, DropReason::unexpected), 2u);

  // Ranges are cut to what exists; sums of wire values do not wrap around.
  const std::array<tarpon_range, 4> ranges{{{1, 0xffffffff}, {3, 1}, {0xffffffff, 2}, {2, 0}}};
  repairs[0].set_payload(ranges.data(), sizeof ranges);
  net.give(repairs[0]);
  EXPECT_EQ(slots_of(net.poll(0)), (std::vector<std::uint32_t>{1, 2}));
}

TEST(EndpointDeliveryTest, retention__may_retain_within_the_limit_of_bytes) {
  EndpointOptions options = small_options();
  options.retain_bytes = 2000;
  Harness net(2, options);
  const auto close_with = [&](std::uint32_t tag, std::uint64_t bytes) {
    auto call = exchange(0, 2, kFew, 1, tag);
    net[0].close(net.submit(std::move(call), 0).handle, keep({}, bytes));
  };
  EXPECT_TRUE(net[0].tags().may_retain(1'000'000)) << "one result is always retained";
  close_with(0, 600);
  EXPECT_TRUE(net[0].tags().may_retain(900));
  EXPECT_FALSE(net[0].tags().may_retain(1300)) << "bookkeeping counts";
  close_with(1, 300);
  EXPECT_TRUE(net[0].tags().may_retain(300));
  EXPECT_FALSE(net[0].tags().may_retain(900)) << "results of all tags count";
  EXPECT_GE(net[0].memory().retained_bytes, 900u);
  EXPECT_LE(net[0].memory().retained_bytes, 2000u);
}

TEST(EndpointDeliveryTest, retention__a_requested_slot_survives_the_release) {
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
  EXPECT_TRUE(net[0].memory().idle());
}

}  // namespace
}  // namespace tarpon::endpoint_delivery_test
