// Endpoints, packet by packet: bounds, deadlines, and ranks that disagree or give up.
#include "transport/endpoint.h"

#include <gtest/gtest.h>

#include "tests/support/endpoint_harness.h"
#include "transport/random.h"

namespace tarpon::endpoint_bounds_test {
namespace {

using namespace testing_support;

constexpr Event::Kind kClosed = Event::Kind::stage_closed;

// -- bounds and deadlines

std::unique_ptr<Call> bounded(Rank rank, std::uint16_t world, std::uint8_t stages, Duration bound) {
  auto call = exchange(rank, world, kFew, stages);
  call->spec.bounded = true;
  call->bounds.fill(bound);
  call->spec.deadline = Time(1s) + 10s;
  return call;
}

TEST(EndpointBoundsTest, bounded__each_stage_closes_at_its_bound) {
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
  EXPECT_NE(net.events[0][0].closing, Closing::complete);
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

// What comes by other ways than packets while all goes well is fetched by a rank that is left out.
TEST(EndpointBoundsTest, bounded__a_rank_that_is_left_out_fetches_messages_for_late_ranks) {
  Harness net(2);
  const auto near_call = [](Rank rank) {
    auto call = bounded(rank, 2, 2, 50ms);
    for (StageSpec& stage : call->spec.stages) stage.sends.clear();
    call->spec.stages[0].receives.clear();
    call->spec.stages[1].receives[0].if_late = true;
    call->spec.near = bit(1 - rank);
    return call;
  };
  Call& late = net.submit(near_call(0), 0);
  Call& kept = net.submit(near_call(1), 1);
  net.settle();
  EXPECT_EQ(net.count(0, kClosed), 2u);  // no packet is due
  EXPECT_EQ(net[0].view(late.handle).progress(1, 1).slots, 0u);
  auto copy = std::make_unique<Retained>();
  copy->stage = 1;
  for (std::uint64_t i = 0; i < kFew; ++i) copy->bytes.push_back(pattern(1, 0, 1, i));
  copy->contributors.assign(kFew / kSlot, bit(1));
  net[1].close(kept.handle, std::move(copy), 0);

  net[0].near(late.handle).left_out(net.now);
  EXPECT_EQ(net.count(0, Event::Kind::late), 1u);
  EXPECT_FALSE(net[0].view(late.handle).has_closed(1));
  EXPECT_EQ(net[0].view(late.handle).progress(1, 1).slots, kFew / kSlot);
  net.run_until(net.now + 100ms);
  EXPECT_EQ(late.sinks[1]->bytes[1], kFew);
  EXPECT_TRUE(net[0].view(late.handle).has_closed(1));
}

TEST(EndpointBoundsTest, bounded__the_clock_starts_when_half_of_the_ranks_have_begun) {
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

TEST(EndpointBoundsTest, bounded__an_early_announcement_counts_from_the_submit_on) {
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

TEST(EndpointBoundsTest, bounded__a_sender_that_has_passed_ends_the_wait) {
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
  EXPECT_NE(closed[0].closing, Closing::complete);
}

TEST(EndpointBoundsTest, bounded__the_deadline_bounds_the_stages_and_comes_after_them) {
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

TEST(EndpointBoundsTest, bounded__lost_grants_are_repeated_where_nothing_may_be_asked_for_again) {
  Harness net(2);
  std::vector<Call*> calls;
  for (Rank rank = 0; rank < 2; ++rank) {
    auto call = exchange(rank, 2, kMany);
    call->spec.bounded = true;
    call->bounds[0] = 1s;
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

TEST(EndpointBoundsTest, deadline__is_told_exactly_once_at_its_time) {
  for (const bool is_bounded : {false, true}) {
    Harness net(4);
    auto call = exchange(0, 4, kMany);
    call->spec.bounded = is_bounded;
    call->bounds.fill(10ms);
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

TEST(EndpointBoundsTest, deadline__a_jump_of_the_clock_tells_it_once) {
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

TEST(EndpointBoundsTest, mismatch__both_sides_learn_the_others_signature_and_add_nothing) {
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

TEST(EndpointBoundsTest, mismatch__is_told_under_loss_of_every_second_packet) {
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

TEST(EndpointBoundsTest, mismatch__is_told_to_a_rank_that_comes_when_the_other_has_closed) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, kMany}) {
    Harness net(2);
    auto mine = exchange(0, 2, bytes);
    mine->spec.signature[7] = 0xaa;
    const Call& a = net.submit(std::move(mine), 0);
    net.poll(0);
    net[0].close(a.handle, nullptr);
    auto theirs = exchange(1, 2, kFew);
    theirs->spec.signature[7] = 0xbb;
    net.submit(std::move(theirs), 1);
    int packets = 0;
    net.run_until(net.now + 1s, [&](const Packet&) { return ++packets, 1; });
    const auto told = net.events_of(1, Event::Kind::mismatch);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].signature[7], 0xaa);
    EXPECT_LT(packets, 50);  // it ends
  }
}

/// An operation `before` it that stays open keeps `closed_below` from ending the talk.
void expect_silence_after_mismatch(bool before) {
  Harness net(2);
  std::array<Call*, 2> calls{};
  for (Rank rank = 0; rank < 2 && before; ++rank) {
    net.submit(exchange(rank, 2, kMany), rank);
    net.poll(rank);
  }
  for (Rank rank = 0; rank < 2; ++rank) {
    auto call = exchange(rank, 2, kFew);
    call->spec.signature[7] = static_cast<std::uint8_t>(rank);
    calls[rank] = &net.submit(std::move(call), rank);
  }
  const Packets late = net.poll(0);
  for (Rank rank = 0; rank < 2; ++rank) net[rank].close(calls[rank]->handle, nullptr);
  int packets = 0;
  net.give(late);
  net.run_until(net.now + 1s, [&](const Packet& packet) {
    packets += packet.header().type == TARPON_HEARTBEAT ? 0 : 1;
    return 1;
  });
  EXPECT_LE(packets, before ? 100 : 1);
}

TEST(EndpointBoundsTest, mismatch__two_that_have_closed_do_not_answer_each_other) {
  expect_silence_after_mismatch(false);
  expect_silence_after_mismatch(true);
}

TEST(EndpointBoundsTest, abort__waits_for_a_rank_that_has_not_begun) {
  Harness net(2);
  const Call& a = net.submit(exchange(0, 2, kMany), 0);
  net[0].abort(a.handle, TARPON_ABORT_GIVEN_UP, 0b1);
  net.settle();
  net.submit(exchange(1, 2, kMany), 1);
  const auto told = net.events_of(1, Event::Kind::aborted);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].reason, std::uint32_t{TARPON_ABORT_GIVEN_UP});
}

TEST(EndpointBoundsTest, abort__is_repeated_to_whoever_missed_it) {
  for (const bool begun : {false, true}) {
    Harness net(2);
    Call& a = net.submit(exchange(0, 2, kMany), 0);
    if (begun) {
      net.submit(exchange(1, 2, kMany), 1);
      net.settle([&](const Packet& packet) { return packet.to == 1 ? 1 : 0; });
    }
    net[0].abort(a.handle, TARPON_ABORT_GIVEN_UP, 0b1);
    net.settle([](const Packet& packet) { return packet.header().type == TARPON_ABORT ? 0 : 1; });
    if (!begun) net.submit(exchange(1, 2, kMany), 1);
    net.run_until(net.now + 100ms);
    EXPECT_GE(net.count(1, Event::Kind::aborted), 1u) << "begun " << begun;
  }
}

TEST(EndpointBoundsTest, abort__is_remembered_of_more_calls_than_may_be_open) {
  for (const std::uint32_t reason : {TARPON_ABORT_GIVEN_UP, TARPON_ABORT_EXPIRED}) {
    Harness net(2);
    for (int call = 0; call < 50; ++call) {
      net[0].abort(net.submit(exchange(0, 2, kMany), 0).handle, reason, 0b1);
      net.settle([](const Packet&) { return 0; });
    }
    net.submit(exchange(1, 2, kMany), 1);
    net.run_until(net.now + 100ms);
    const auto told = net.events_of(1, Event::Kind::aborted);
    ASSERT_FALSE(told.empty()) << "reason " << reason;
    EXPECT_EQ(told[0].reason, reason);
    EXPECT_EQ(told[0].peer, 0);
  }
}

TEST(EndpointBoundsTest, abort__of_an_expired_call_costs_a_bounded_one_its_part_alone) {
  Harness net(3);
  std::array<Call*, 3> calls{};
  for (Rank rank = 0; rank < 3; ++rank) {
    auto call = exchange(rank, 3, kFew);
    call->spec.bounded = true;
    call->bounds[0] = 1s;
    call->spec.stages[0].repair = false;
    calls[rank] = &net.submit(std::move(call), rank);
  }
  net[0].abort(calls[0]->handle, TARPON_ABORT_EXPIRED, 0b1);
  net.run_until(net.now + 1ms);
  for (Rank rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(net.count(rank, Event::Kind::aborted), 0u);
    const auto closed = net.events_of(rank, kClosed);
    ASSERT_EQ(closed.size(), 1u);
    EXPECT_NE(closed[0].closing, Closing::complete);
    EXPECT_EQ(calls[rank]->sinks[0]->bytes[static_cast<Rank>(3 - rank)], kFew);
  }
}

TEST(EndpointBoundsTest, abort__of_a_call_that_never_began_is_no_mismatch) {
  Harness net(2);
  auto call = exchange(1, 2, kFew);
  call->spec.bounded = true;
  call->bounds[0] = 1s;
  net.submit(std::move(call), 1);
  net.run_until(net.now + 50ms);  // its announcement waits at rank 0
  auto nothing = std::make_unique<Call>();
  nothing->spec.slot_bytes = kSlot;
  nothing->spec.stages.resize(1);
  const Call& expired = net.submit(std::move(nothing), 0);
  net[0].abort(expired.handle, TARPON_ABORT_EXPIRED, 0b1);
  const Packets sent = net.poll(0);
  EXPECT_FALSE(of_type(sent, TARPON_ABORT).empty());
  EXPECT_TRUE(of_type(sent, TARPON_READY).empty());
  net.give(sent);
  net.run_until(net.now + 100ms);
  EXPECT_EQ(net.count(1, Event::Kind::mismatch), 0u);
  EXPECT_EQ(net.count(1, kClosed), 1u);
}

TEST(EndpointBoundsTest, late__what_a_peer_has_passed_is_not_waited_for) {
  Harness net(2);
  Call& a = net.submit(exchange(0, 2, kFew), 0);
  net[0].close(a.handle, nullptr);
  net.submit(exchange(0, 2, kFew), 0);
  net.settle();  // rank 1 learns that operation 0 is over, and has a packet of operation 1
  auto call = exchange(1, 2, kFew, 2);
  call->spec.bounded = true;
  call->bounds.fill(1s);
  call->spec.stages[0].repair = false;
  call->spec.stages[1].acknowledge = true;
  Call& first = net.submit(exchange(1, 2, kFew, 1, 7), 1);  // another tag: nothing is known of it
  Call& b = net.submit(std::move(call), 1);
  net.run_until(net.now + 1ms);
  const auto closed = net.events_of(1, kClosed);
  ASSERT_EQ(closed.size(), 2u);
  for (std::uint8_t stage = 0; stage < 2; ++stage) {  // rank 0 retains nothing of the second one
    EXPECT_EQ(closed[stage].operation, b.handle);
    EXPECT_EQ(closed[stage].stage, stage);
  }
  EXPECT_TRUE(net[1].view(b.handle).acknowledged(1));
  EXPECT_FALSE(net[1].view(first.handle).progress(0, 0).heard);
}

TEST(EndpointBoundsTest, bounded__a_lost_credit_window_does_not_stall_the_rest) {
  Harness net(2);
  std::array<Call*, 2> calls{};
  for (Rank rank = 0; rank < 2; ++rank) {
    auto call = from_zero(rank, 2, 200 * kSlot);
    call->spec.bounded = true;
    call->bounds[0] = 1s;
    call->spec.stages[0].repair = false;
    calls[rank] = &net.submit(std::move(call), rank);
  }
  const Time start = net.now;
  std::uint32_t lost = 0;
  net.run_until(start + 900ms, [&](const Packet& packet) {
    const bool lose =
        packet.header().type == TARPON_DATA && packet.header().slot < 100 && net.now < start + 5ms;
    lost += lose;
    return lose ? 0 : 1;
  });
  EXPECT_GE(lost, 16u);
  EXPECT_EQ(calls[1]->sinks[0]->bytes[0], (200 - lost) * kSlot);
}

TEST(EndpointBoundsTest, abort__is_told_with_its_reason_and_ends_the_sending) {
  Harness net(3);
  Call& a = net.submit(exchange(0, 3, kMany), 0);
  net.submit(exchange(1, 3, kMany), 1);
  net.submit(exchange(2, 3, kMany), 2);
  net[0].abort(a.handle, TARPON_ABORT_ARGUMENT, 0b1);
  const Packets packets = net.poll(0);
  EXPECT_EQ(packets.size(), 2u);
  net.give(packets);
  for (Rank rank = 1; rank < 3; ++rank) {
    const auto told = net.events_of(rank, Event::Kind::aborted);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].peer, 0);
    EXPECT_EQ(told[0].reason, std::uint32_t{TARPON_ABORT_ARGUMENT});
  }
  EXPECT_TRUE(net[0].memory().idle());
}

}  // namespace
}  // namespace tarpon::endpoint_bounds_test
