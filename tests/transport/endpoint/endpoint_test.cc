// Endpoints, packet by packet: numbers, early packets, acknowledgement, sending, accounting.
#include "transport/endpoint.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/endpoint_harness.h"
#include "transport/random.h"

namespace tarpon::endpoint_test {
namespace {

using namespace testing_support;

constexpr Event::Kind kClosed = Event::Kind::stage_closed;

// -- numbers and windows

TEST(EndpointTest, submit__numbers_count_per_tag_within_the_window) {
  Harness net(2);
  const std::uint32_t window = small_options().window;
  std::vector<OperationHandle> handles;
  for (std::uint32_t i = 0; i < window; ++i) {
    EXPECT_TRUE(net[0].tags().can_submit(5));
    EXPECT_EQ(net[0].tags().next_number(5), i);
    handles.push_back(net.submit(exchange(0, 2, kFew, 1, 5), 0).handle);
  }
  EXPECT_FALSE(net[0].tags().can_submit(5));
  EXPECT_TRUE(net[0].tags().can_submit(6));
  EXPECT_EQ(net[0].tags().next_number(6), 0u);
  // Closing a later one does not move the window: the lowest open one bounds it.
  net[0].close(handles[3], nullptr);
  EXPECT_FALSE(net[0].tags().can_submit(5));
  net[0].close(handles[0], nullptr);
  EXPECT_TRUE(net[0].tags().can_submit(5));
  EXPECT_EQ(net[0].tags().next_number(5), window);
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
  EXPECT_LE(net[0].memory().retained_entries, 2u);
}

/// Engine runs timers amid packets only when they are overdue. So an event must not postpone them.
TEST(EndpointTest, next_deadline__of_an_overdue_timer_stays) {
  Harness net(2);
  net.submit(exchange(0, 2, kFew), 0);
  net.poll(0);
  net.tick(0);
  const Time due = net[0].next_deadline();
  ASSERT_LT(due, kNever);
  net.now = due + 5ms;
  net.submit(exchange(0, 2, kFew, 1, 7), 0);
  EXPECT_LE(net[0].next_deadline(), due);
}

// -- early packets

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

TEST(EndpointTest, early__what_found_no_room_is_asked_for_in_bounded_operations_too) {
  EndpointOptions options = small_options();
  options.early_operations = 1;
  Harness net(2, options);
  const auto bounded = [](Rank rank, std::uint32_t tag) {
    auto call = exchange(rank, 2, kSlot, 1, tag);
    call->spec.bounded = true;
    call->bounds[0] = 1s;
    call->spec.stages[0].repair = false;
    return call;
  };
  for (std::uint32_t tag = 0; tag < 2; ++tag) net.submit(bounded(0, tag), 0);
  net.settle();
  EXPECT_EQ(net.dropped(1, DropReason::early_overrun), 1u);
  for (std::uint32_t tag = 0; tag < 2; ++tag) net.submit(bounded(1, tag), 1);
  net.run_until(net.now + 200ms);
  const auto closed = net.events_of(1, Event::Kind::stage_closed);
  ASSERT_EQ(closed.size(), 2u);
  for (const Event& event : closed) EXPECT_EQ(event.closing, Closing::complete);
}

TEST(EndpointTest, early__an_operation_nobody_begins_makes_room_after_a_while) {
  EndpointOptions options = small_options();
  options.early_operations = 1;
  Harness net(2, options);
  net.submit(exchange(0, 2, kSlot, 1, 5), 0);
  net.settle();
  net.now += 11s;
  net.submit(exchange(0, 2, kSlot, 1, 6), 0);
  net.settle();
  EXPECT_EQ(net.dropped(1, DropReason::early_overrun), 0u);
  EXPECT_EQ(net[1].counters().parked, 2u);
  for (std::uint32_t tag = 5; tag < 7; ++tag) net.submit(exchange(1, 2, kSlot, 1, tag), 1);
  net.run_until(net.now + 300ms);
  EXPECT_EQ(net.count(1, Event::Kind::stage_closed), 2u);
}

// -- acknowledgement, sending, accounting

TEST(EndpointTest, acknowledge__receivers_confirm_the_whole_message) {
  Harness net(3);
  std::vector<Call*> calls;
  for (Rank rank = 0; rank < 3; ++rank) {
    auto call = exchange(rank, 3, kMany);
    call->spec.stages[0].acknowledge = true;
    calls.push_back(&net.submit(std::move(call), rank));
    EXPECT_FALSE(net[rank].view(calls[rank]->handle).acknowledged(0));
    EXPECT_FALSE(net[rank].view(calls[rank]->handle).sent(0));
  }
  net.run_until(net.now + 100ms);
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(net[rank].view(calls[rank]->handle).acknowledged(0));
    EXPECT_TRUE(net[rank].view(calls[rank]->handle).sent(0));
    EXPECT_EQ(net.count(rank, Event::Kind::acknowledged), 1u);
  }
}

/// What is sent on is kept by nobody else: a sender has to learn that it has arrived.
TEST(EndpointTest, acknowledge__a_lost_one_is_asked_for_where_ranks_forward) {
  for (const bool closed : {false, true}) {
    Harness net(2);
    std::array<Call*, 2> calls{};
    for (Rank rank = 0; rank < 2; ++rank) {
      auto call = exchange(rank, 2, kFew);
      call->spec.awaits_confirmations = true;
      call->spec.stages[0].acknowledge = true;
      calls[rank] = &net.submit(std::move(call), rank);
    }
    const auto loses_confirmations = [](const Packet& packet) {
      const tarpon_header header = packet.header();
      const bool confirms = header.type == TARPON_CREDIT && header.slot == TARPON_CREDIT_COMPLETE;
      return packet.to == 0 && confirms ? 0 : 1;
    };
    net.settle(loses_confirmations);
    EXPECT_FALSE(net[0].view(calls[0]->handle).acknowledged(0));
    if (closed) net[1].close(calls[1]->handle, nullptr);
    net.run_until(net.now + 2 * small_options().quiet_delay + 1ms);
    EXPECT_TRUE(net[0].view(calls[0]->handle).acknowledged(0));
  }
}

TEST(EndpointTest, acknowledge__closed_confirms_where_ranks_forward_though_an_older_one_is_open) {
  Harness net(2);
  const auto forwarding = [](Rank rank) {
    auto call = exchange(rank, 2, kFew);
    call->spec.awaits_confirmations = true;
    call->spec.stages[0].acknowledge = true;
    return call;
  };
  net.submit(forwarding(1), 1);  // rank 0 makes its call of it later
  net.submit(forwarding(0), 0);
  const Call& at_0 = net.submit(forwarding(0), 0);
  const Call& at_1 = net.submit(forwarding(1), 1);
  const auto loses_confirmations = [](const Packet& packet) {
    const tarpon_header header = packet.header();
    return packet.to == 0 && header.type == TARPON_CREDIT ? 0 : 1;
  };
  net.settle(loses_confirmations);
  net[1].close(at_1.handle, nullptr);
  net.run_until(net.now + 50ms, loses_confirmations);
  EXPECT_EQ(net[1].tags().lowest_open(0), 0u);
  EXPECT_EQ(net[0].view(at_0.handle).unacknowledged(), 0u);
}

/// What comes of another rank may wait for one that sends nothing here.
TEST(EndpointTest, silence__is_looked_for_among_all_ranks_where_ranks_forward) {
  for (const bool forwards : {false, true}) {
    EndpointOptions options = small_options();
    options.detects_silence = true;
    Harness net(3, options);
    auto call = exchange(0, 3, kFew);
    call->spec.awaits_confirmations = forwards;
    std::erase_if(call->spec.stages[0].receives,
                  [](const ReceiveSpec& receive) { return receive.peer == 2; });
    net.submit(std::move(call), 0);
    net.run_until(net.now + 500ms, [](const Packet& packet) { return packet.from == 2 ? 0 : 1; });
    EXPECT_EQ((net[0].peers().silent() >> 2 & 1) != 0, forwards);
  }
}

TEST(EndpointTest, acknowledge__of_what_was_never_sent_is_refused) {
  Harness net(2);
  auto call = exchange(0, 2, kFew);
  call->spec.stages[0].acknowledge = true;
  call->spec.stages[0].ready = 1;
  const Call& a = net.submit(std::move(call), 0);
  net.submit(exchange(1, 2, kFew), 1);
  Packet forged = net.poll(1).front();
  tarpon_header header = forged.header();
  header.type = TARPON_CREDIT;
  header.flags &= TARPON_INTEGRITY_MASK;
  header.slot = TARPON_CREDIT_COMPLETE;
  forged.set(header);
  forged.set_payload(nullptr, 0);
  net.poll(0);
  net.give(forged);
  EXPECT_EQ(net.dropped(0, DropReason::unexpected), 1u);
  EXPECT_FALSE(net[0].view(a.handle).acknowledged(0));
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
  net[0].advance(a.handle, 0, kMaxPayload);
  EXPECT_EQ(slots_of(net.poll(0)), (std::vector<std::uint32_t>{2}));
}

TEST(EndpointTest, advance__of_one_message_leaves_the_others_where_they_are) {
  Harness net(3);
  auto call = from_zero(0, 3, kFew);
  call->spec.stages[0].ready = 0;
  Call& a = net.submit(std::move(call), 0);
  net[0].advance(a.handle, 0, 2, 1);
  const Packets packets = of_type(net.poll(0), TARPON_DATA);
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].to, 2);
  net[0].advance(a.handle, 0, 2, 0);
  net[0].advance(a.handle, 0, 1, 2);
  EXPECT_EQ(slots_of(net.poll(0)), (std::vector<std::uint32_t>{0, 1}));
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
    std::array<std::byte, kMaxPayload> room;
    TxPacket frame;
    frame.header = header.data();
    frame.room = room.data();
    frame.lender = 4711;  // of the packet that it carried before
    ASSERT_EQ(net[0].poll_transmit(net.now, {&frame, 1}), 1u);
    EXPECT_EQ(frame.payload == room.data(), !gathers);
    EXPECT_EQ(frame.lender, gathers ? lender_of(a.handle) : kNoLender);
    if (gathers) {
      EXPECT_EQ(frame.payload, a.sources[0]->lend(0, 1).payload);
    }
  }
}

TEST(EndpointTest, lender_of__is_another_one_for_an_operation_opened_after_the_end_of_one) {
  Harness net(2, small_options(), plain_port());
  const OperationHandle first = net.submit(exchange(0, 2, kFew), 0).handle;
  const OperationHandle beside = net.submit(exchange(0, 2, kFew), 0).handle;
  net[0].close(first, nullptr);
  const OperationHandle later = net.submit(exchange(0, 2, kFew), 0).handle;
  EXPECT_EQ(later.index, first.index);
  const std::set<Lender> lenders = {kNoLender, lender_of(first), lender_of(beside),
                                    lender_of(later)};
  EXPECT_EQ(lenders.size(), 4u);
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
}  // namespace tarpon::endpoint_test
