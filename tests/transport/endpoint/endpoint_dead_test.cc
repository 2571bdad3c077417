// Dead ranks: what the endpoint no longer waits for, sends, takes or keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/endpoint_harness.h"

namespace tarpon::endpoint_dead_test {
namespace {

using namespace testing_support;

std::unique_ptr<Call> bounded(Rank rank, std::uint16_t world, std::uint64_t bytes,
                              std::uint8_t stages = 1) {
  auto call = exchange(rank, world, bytes, stages);
  call->spec.bounded = true;
  call->bounds.fill(10s);
  return call;
}

Packets to(Rank rank, const Packets& packets) {
  Packets result;
  for (const Packet& packet : packets) {
    if (packet.to == rank) result.push_back(packet);
  }
  return result;
}

TEST(EndpointDeadTest, bounded__goes_on_at_once_with_what_has_come) {
  Harness net(3);
  std::array<Call*, 3> calls{};
  for (Rank rank = 0; rank < 3; ++rank) calls[rank] = &net.submit(bounded(rank, 3, kMany), rank);
  std::uint32_t passed = 0;  // of rank 2's DATA to rank 0
  net.settle([&](const Packet& packet) {
    if (packet.from != 2 || packet.header().type != TARPON_DATA) return 1;
    return packet.to == 0 && passed++ < 3 ? 1 : 0;
  });
  EXPECT_EQ(net.count(0, Event::Kind::stage_closed), 0u);
  for (Rank rank = 0; rank < 2; ++rank) {
    net[rank].peer_dead(2, net.now);
    const auto closed = net.events_of(rank, Event::Kind::stage_closed);
    ASSERT_EQ(closed.size(), 1u);
    EXPECT_EQ(closed[0].closing, Closing::given_up);
    EXPECT_EQ(net[rank].view(calls[rank]->handle).progress(0, 2).received, rank == 0 ? 3u : 0u);
    EXPECT_EQ(net[rank].view(calls[rank]->handle).progress(0, 1 - rank).received, 20u);
  }
}

TEST(EndpointDeadTest, packets__of_the_dead_are_refused_and_none_are_sent_to_it) {
  Harness net(3);
  for (Rank rank = 0; rank < 3; ++rank) net.submit(bounded(rank, 3, kMany), rank);
  const Packets late = to(0, net.poll(2));
  ASSERT_FALSE(late.empty());
  net[0].peer_dead(2, net.now);
  net[0].peer_dead(2, net.now);
  net[0].peer_dead(0, net.now);  // nobody is dead to itself
  net.give(late);
  EXPECT_EQ(net.dropped(0, DropReason::sender), late.size());
  for (int round = 0; round < 50; ++round) {
    net.now += 10ms;
    net.tick(0);
    EXPECT_TRUE(to(2, net.poll(0)).empty());
  }
}

TEST(EndpointDeadTest, later_operations__neither_wait_for_it_nor_announce_themselves) {
  Harness net(3);
  for (Rank rank = 0; rank < 2; ++rank) net[rank].peer_dead(2, net.now);
  std::array<Call*, 2> calls{};
  for (Rank rank = 0; rank < 2; ++rank) {
    calls[rank] = &net.submit(bounded(rank, 3, kMany, 2), rank);
  }
  bool sent = false;
  net.settle([&](const Packet& packet) {
    sent |= packet.to == 2;
    return 1;
  });
  EXPECT_FALSE(sent);
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(net.count(rank, Event::Kind::stage_closed), 2u);
    EXPECT_TRUE(net[rank].view(calls[rank]->handle).sent(1));
    EXPECT_FALSE(net[rank].view(calls[rank]->handle).progress(0, 2).heard);
  }
}

TEST(EndpointDeadTest, clock__starts_with_half_of_the_living) {
  Harness net(5);
  for (Rank rank = 2; rank < 5; ++rank) net[0].peer_dead(rank, net.now);
  auto call = bounded(0, 5, kMany);
  call->bounds[0] = 100ms;
  net.submit(std::move(call), 0);
  net.run_until(net.now + 1s);  // 1 of 2 is half
  const auto closed = net.events_of(0, Event::Kind::stage_closed);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].closing, Closing::bound);

  Harness other(5);
  for (const Rank rank : {Rank{3}, Rank{4}}) other[0].peer_dead(rank, other.now);
  call = bounded(0, 5, kMany);
  call->bounds[0] = 100ms;
  other.submit(std::move(call), 0);
  other.run_until(other.now + 1s);  // 1 of 3 is not
  EXPECT_EQ(other.count(0, Event::Kind::stage_closed), 0u);
  other[0].peer_dead(2, other.now);
  other.run_until(other.now + 1s);
  EXPECT_EQ(other.count(0, Event::Kind::stage_closed), 1u);
}

TEST(EndpointDeadTest, acknowledged__and_retained_without_it) {
  Harness net(3);
  std::array<Call*, 3> calls{};
  for (Rank rank = 0; rank < 3; ++rank) {
    auto call = exchange(rank, 3, kMany);
    call->spec.stages[0].acknowledge = true;
    calls[rank] = &net.submit(std::move(call), rank);
  }
  // All data arrives; rank 2 says nothing of it.
  net.settle([](const Packet& packet) {
    return packet.from == 2 && packet.header().type == TARPON_CREDIT &&
                   packet.header().slot == TARPON_CREDIT_COMPLETE
               ? 0
               : 1;
  });
  EXPECT_FALSE(net[0].view(calls[0]->handle).acknowledged(0));
  net[0].peer_dead(2, net.now);
  EXPECT_TRUE(net[0].view(calls[0]->handle).acknowledged(0));
  EXPECT_EQ(net.count(0, Event::Kind::acknowledged), 1u);

  auto retained = std::make_unique<Retained>();
  retained->bytes.resize(kMany);
  retained->contributors.resize(20);
  net[0].close(calls[0]->handle, std::move(retained));
  net[1].close(calls[1]->handle, nullptr);
  net.submit(exchange(1, 3, kFew), 1);  // rank 1 has passed it
  net.settle();
  net.poll(0);
  EXPECT_TRUE(net[0].memory().idle());
}

EndpointOptions watchful_options() {
  EndpointOptions options = small_options();
  options.detects_silence = true;
  return options;
}

/// Loses all that `ranks` (bit r: rank r) send.
Fate mute(std::uint64_t ranks) {
  return [ranks](const Packet& packet) { return (ranks >> packet.from & 1) != 0 ? 0 : 1; };
}

TEST(EndpointDeadTest, silent__bounded_operations_go_on_without_it_and_exact_ones_wait) {
  Harness net(2, watchful_options());
  const Call& exact = net.submit(exchange(0, 2, kFew, 1, 1), 0);
  const Call& open = net.submit(bounded(0, 2, kFew), 0);
  net.run_until(net.now + 400ms, mute(0b10));
  ASSERT_EQ(net[0].peers().silent(), 0b10u);
  const Call& begun = net.submit(bounded(0, 2, kFew), 0);
  const auto closed = net.events_of(0, Event::Kind::stage_closed);
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_EQ(closed[0].operation, open.handle);
  EXPECT_EQ(closed[1].operation, begun.handle);
  for (const Event& event : closed) EXPECT_EQ(event.closing, Closing::given_up);

  net.run_until(net.now + 100ms);  // it answers
  ASSERT_EQ(net[0].peers().silent(), 0u);
  const Call& after = net.submit(bounded(0, 2, kFew), 0);
  for (int number = 0; number < 3; ++number) net.submit(bounded(1, 2, kFew), 1);
  net.submit(exchange(1, 2, kFew, 1, 1), 1);
  net.run_until(net.now + 1s);
  std::vector<OperationHandle> complete;
  for (const Event& event : net.events_of(0, Event::Kind::stage_closed)) {
    if (event.closing == Closing::complete) complete.push_back(event.operation);
  }
  EXPECT_THAT(complete, testing::UnorderedElementsAre(exact.handle, after.handle));
}

TEST(EndpointDeadTest, silent__then_dead_and_half_of_the_others_start_the_clock) {
  Harness net(4, watchful_options());
  net.submit(exchange(0, 4, kFew, 1, 1), 0);  // lacks all others
  net.run_until(net.now + 400ms, mute(0b1100));
  ASSERT_EQ(net[0].peers().silent(), 0b1100u);
  net[0].peer_dead(3, net.now);
  const auto closes = [&net](const Fate& fate) {
    auto call = bounded(0, 4, kFew);
    call->bounds[0] = 100ms;
    const std::size_t before = net.count(0, Event::Kind::stage_closed);
    net.submit(std::move(call), 0);
    net.run_until(net.now + 1s, fate);
    return net.count(0, Event::Kind::stage_closed) > before;
  };
  EXPECT_TRUE(closes(mute(0b1100)));  // 1 of 2
  net.run_until(net.now + 100ms);     // rank 2 answers; rank 3 does in vain
  ASSERT_EQ(net[0].peers().silent(), 0u);
  EXPECT_FALSE(closes(mute(0)));  // 1 of 3
}

TEST(EndpointDeadTest, parked__what_came_early_of_it_still_counts) {
  Harness net(2);
  net.submit(bounded(1, 2, kFew), 1);
  net.give(net.poll(1));
  net[0].peer_dead(1, net.now);
  const Call& call = net.submit(bounded(0, 2, kFew), 0);
  EXPECT_EQ(call.sinks[0]->bytes.at(1), kFew);
  const auto closed = net.events_of(0, Event::Kind::stage_closed);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].closing, Closing::complete);
}

}  // namespace
}  // namespace tarpon::endpoint_dead_test
