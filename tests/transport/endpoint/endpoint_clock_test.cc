// When the clock of a bounded operation starts, and what follows from the ends that the caller
// sets.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/support/endpoint_harness.h"

namespace tarpon::testing_support::endpoint_clock_test {
namespace {

constexpr Duration kStage = 20ms;

std::unique_ptr<Call> bounded(Rank rank, std::uint16_t world, std::uint8_t stages = 2) {
  auto call = exchange(rank, world, kFew, stages);
  call->spec.bounded = true;
  call->bounds.fill(kStage);
  call->spec.deadline = Time(1s) + 60s;
  return call;
}

std::uint64_t readies(const Packets& packets) {
  return of_type(packets, TARPON_READY).size();
}

class EndpointClockTest : public testing::Test {
 protected:
  static constexpr std::uint16_t kWorld = 4;

  /// So that packets carry echoes.
  void run_one_call() {
    std::vector<Call*> calls;
    for (Rank rank = 0; rank < kWorld; ++rank) {
      calls.push_back(&net_.submit(bounded(rank, kWorld), rank));
    }
    net_.run_until(net_.now + 1ms);
    for (Call* call : calls) net_[call->rank].close(call->handle, nullptr);
    net_.settle();
    for (auto& clocks : net_.clocks) clocks.clear();
    for (auto& events : net_.events) events.clear();
  }

  void submit_all_but_0() {
    for (Rank rank = 1; rank < kWorld; ++rank) net_.submit(bounded(rank, kWorld), rank);
    net_.run_until(net_.now);
  }

  Harness net_{kWorld};
};

TEST_F(EndpointClockTest, begun_late__starts_when_the_others_began) {
  run_one_call();
  const Time start = net_.now;
  submit_all_but_0();
  net_.now = start + 10ms;
  net_.submit(bounded(0, kWorld), 0);
  net_.tick(0);
  ASSERT_EQ(net_.clocks[0].size(), 1u);
  EXPECT_LE(net_.clocks[0][0], start);
  EXPECT_GE(net_.clocks[0][0], start - 1ms);
  EXPECT_EQ(net_.count(0, Event::Kind::late), 0u);
}

TEST_F(EndpointClockTest, begun_after_the_scatter__is_late_from_the_start) {
  run_one_call();
  const Time start = net_.now;
  submit_all_but_0();
  net_.now = start + kStage + 2ms;
  net_.submit(bounded(0, kWorld), 0);
  net_.tick(0);
  ASSERT_EQ(net_.count(0, Event::Kind::late), 1u);
  EXPECT_EQ(net_.events_of(0, Event::Kind::late)[0].peer, 0);
  for (const Packet& packet : of_type(net_.poll(0), TARPON_DATA)) {
    ADD_FAILURE() << "contributes slot " << packet.header().slot;
  }
}

TEST_F(EndpointClockTest, begun_late__without_an_echo_starts_at_the_own_begin) {
  const Time start = net_.now;
  submit_all_but_0();
  net_.now = start + kStage + 2ms;
  net_.submit(bounded(0, kWorld), 0);
  net_.tick(0);
  ASSERT_EQ(net_.clocks[0].size(), 1u);
  EXPECT_EQ(net_.clocks[0][0], net_.now);
  EXPECT_EQ(net_.count(0, Event::Kind::late), 0u);
}

/// READY says how long the peer encoded; its DATA may come before it.
TEST_F(EndpointClockTest, data_that_overtakes_ready__does_not_hide_the_encoding) {
  run_one_call();
  const Time start = net_.now;
  net_.now = start + 10ms;
  Packets packets;
  for (const Rank rank : {Rank{0}, Rank{2}}) {
    auto call = bounded(rank, kWorld);
    call->spec.began = start;
    call->spec.terms = {1, 2, 3};
    call->spec.tells_terms = true;
    net_.submit(std::move(call), rank);
    net_.tick(rank);
    for (Packet& packet : net_.poll(rank)) packets.push_back(std::move(packet));
  }
  const std::size_t data = of_type(packets, TARPON_DATA).size();
  EXPECT_GT(data, 0u);
  EXPECT_GT(readies(packets), 0u);
  std::stable_partition(packets.begin(), packets.end(),
                        [](const Packet& packet) { return packet.header().type == TARPON_DATA; });
  net_.give(packets);
  net_.now = start + 11ms;
  net_.submit(bounded(1, kWorld), 1);
  net_.tick(1);
  ASSERT_EQ(net_.clocks[1].size(), 1u);
  EXPECT_LE(net_.clocks[1][0], start + 1ms);
}

TEST(EndpointTermsTest, began__the_time_before_the_opening_counts) {
  Harness net(3);
  const Time start = net.now;
  net.submit(bounded(1, 3), 1);
  net.settle();
  net.now = start + 10ms;
  auto encoded = bounded(0, 3);
  encoded->spec.began = start + 2ms;
  net.submit(std::move(encoded), 0);
  net.tick(0);
  for (const Packet& packet : of_type(net.poll(0), TARPON_READY)) net.give(packet);
  ASSERT_EQ(net.clocks[1].size(), 1u);
  EXPECT_EQ(net.clocks[1][0], start + 2ms);
}

TEST(EndpointTermsTest, terms__come_with_ready) {
  Harness net(2);
  auto call = bounded(0, 2);
  call->spec.terms = {1, 2, 3};
  net.submit(std::move(call), 0);
  Call& other = net.submit(bounded(1, 2), 1);
  EXPECT_EQ(net[1].view(other.handle).terms(0), std::nullopt);
  net.run_until(net.now);
  EXPECT_EQ(net[1].view(other.handle).terms(0), (CallTerms{1, 2, 3}));
}

TEST(EndpointTermsTest, terms__that_came_before_the_operation_began) {
  Harness net(2);
  auto call = bounded(0, 2);
  call->spec.terms = {1, 2, 3};
  net.submit(std::move(call), 0);
  net.run_until(net.now);
  Call& other = net.submit(bounded(1, 2), 1);
  EXPECT_EQ(net[1].view(other.handle).terms(0), (CallTerms{1, 2, 3}));
}

TEST(EndpointTermsTest, tells_terms__or_data_announces_a_small_operation) {
  for (const bool tells : {true, false}) {
    Harness net(2);
    auto call = bounded(0, 2);
    call->spec.tells_terms = tells;
    net.submit(std::move(call), 0);
    net.tick(0);
    EXPECT_EQ(readies(net.poll(0)), tells ? 1u : 0u);
  }
}

}  // namespace
}  // namespace tarpon::testing_support::endpoint_clock_test
