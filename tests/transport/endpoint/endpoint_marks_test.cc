// Endpoints, packet by packet: how the news of marks goes round.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/support/endpoint_harness.h"

namespace tarpon::endpoint_marks_test {
namespace {

using namespace testing_support;

std::unique_ptr<Call> call_of(Rank rank, std::uint16_t world, bool marked, bool bounded = true) {
  auto call = exchange(rank, world, kFew, 2);
  call->spec.bounded = bounded;
  call->bounds.fill(50ms);
  call->spec.deadline = Time(1s) + 10s;
  call->spec.marked = marked;
  return call;
}

bool flagged(const Packet& packet) {
  return (packet.header().flags & TARPON_FLAG_NONFINITE) != 0;
}

TEST(EndpointMarksTest, sender__flags_every_packet_from_the_first) {
  Harness net(3);
  net.submit(call_of(0, 3, true), 0);
  const Packets packets = net.poll(0);
  ASSERT_FALSE(of_type(packets, TARPON_DATA).empty());
  for (const Packet& packet : packets) EXPECT_TRUE(flagged(packet));
  for (const Packet& packet : of_type(packets, TARPON_READY)) {
    EXPECT_EQ(packet.header().contributors, 1u);
  }
}

TEST(EndpointMarksTest, receiver__passes_it_on_but_for_its_own_first_stage) {
  Harness net(3);
  for (Rank rank = 0; rank < 3; ++rank) net.submit(call_of(rank, 3, rank == 0), rank);
  Packets from_zero = of_type(net.poll(0), TARPON_DATA);
  std::erase_if(from_zero, [](const Packet& packet) { return packet.to != 1; });
  net.give(from_zero.front());
  const Packets packets = net.poll(1);
  ASSERT_FALSE(of_type(packets, TARPON_CREDIT).empty()) << "names go to every peer at once";
  for (const Packet& packet : of_type(packets, TARPON_CREDIT)) {
    EXPECT_EQ(packet.header().contributors, 1u);
  }
  for (const Packet& packet : packets) {
    const tarpon_header header = packet.header();
    const bool first_stage = header.type == TARPON_DATA && header.stage == 0;
    EXPECT_EQ(flagged(packet), !first_stage) << "type " << int{header.type};
  }
  // One that has heard nothing of rank 0 knows it from rank 1.
  for (const Packet& packet : packets) {
    if (packet.to == 2) net.give(packet);
  }
  const Call& third = net.submit(call_of(2, 3, false), 2);  // the next operation knows of nothing
  EXPECT_FALSE(net[2].view(third.handle).marks().any());
}

/// Lends slots with the sums of several ranks, in turns.
class Sums : public Source {
 public:
  explicit Sums(std::vector<std::uint64_t> contributors) : contributors_(std::move(contributors)) {}
  OutgoingRun lend(std::uint32_t first, std::uint32_t) override {
    return {bytes_.data(), 0, 1, contributors_[first % contributors_.size()]};
  }

 private:
  std::vector<std::uint64_t> contributors_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kSlot);
};

class NoSink : public Sink {
 public:
  void deliver(const IncomingRun&) override {}
};

/// Rank 0 sends sums over the ranks of its host. Some lack rank 1, which has set its mark.
TEST(EndpointMarksTest, sum__is_flagged_if_a_marked_rank_is_in_it) {
  Harness net(4);
  Sums sums({0x1, 0x3});
  auto call = call_of(0, 4, false);
  for (SendSpec& send : call->spec.stages[0].sends) send.source = &sums;
  const Call& first = net.submit(std::move(call), 0);
  net[0].near(first.handle).marked({.heard = true, .ranks = 0x2});
  Packets data = of_type(net.poll(0), TARPON_DATA);
  std::erase_if(data, [](const Packet& packet) { return packet.header().stage != 0; });
  ASSERT_GT(data.size(), 2u);
  std::set<std::uint64_t> contributors;
  for (const Packet& packet : data) {
    EXPECT_EQ(flagged(packet), packet.header().contributors == 0x3);
    contributors.insert(packet.header().contributors);
  }
  EXPECT_EQ(contributors.size(), 2u);
  NoSink sink;
  auto receiver = call_of(2, 4, false);
  for (ReceiveSpec& receive : receiver->spec.stages[0].receives) receive.sink = &sink;
  const Call& other = net.submit(std::move(receiver), 2);
  for (const Packet& packet : data) {
    if (packet.to == 2) net.give(packet);
  }
  EXPECT_TRUE(net[2].view(other.handle).marks().heard);
  EXPECT_EQ(net[2].view(other.handle).marks().ranks & 0x1, 0u) << "rank 0 has no mark";
}

TEST(EndpointMarksTest, everybody__knows_whose_it_is) {
  Harness net(4);
  std::vector<OperationHandle> handles;
  for (Rank rank = 0; rank < 4; ++rank) {
    handles.push_back(net.submit(call_of(rank, 4, rank == 1 || rank == 3), rank).handle);
  }
  net.settle();
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(net[rank].view(handles[rank]).marks().heard);
    EXPECT_EQ(net[rank].view(handles[rank]).marks().ranks, 0xau);
  }
}

TEST(EndpointMarksTest, exact__takes_no_notice) {
  Harness net(2);
  const Call& a = net.submit(call_of(0, 2, true, false), 0);
  const Call& b = net.submit(call_of(1, 2, false, false), 1);
  for (Packet packet : net.poll(0)) {
    EXPECT_FALSE(flagged(packet));
    tarpon_header header = packet.header();
    header.flags |= TARPON_FLAG_NONFINITE;
    packet.set(header);
    net.give(packet);
  }
  net.settle();
  EXPECT_FALSE(net[0].view(a.handle).marks().any());
  EXPECT_FALSE(net[1].view(b.handle).marks().any());
}

TEST(EndpointMarksTest, names__beyond_the_world_are_not_taken) {
  Harness net(2);
  net.submit(call_of(0, 2, true), 0);
  const Call& b = net.submit(call_of(1, 2, false), 1);
  Packets lost;
  net.run_until(net.now + 20ms, [&lost](const Packet& packet) {
    if (packet.from == 0) lost.push_back(packet);
    return 0;
  });
  ASSERT_FALSE(of_type(lost, TARPON_READY).empty());
  Packet ready = of_type(lost, TARPON_READY)[0];
  tarpon_header header = ready.header();
  header.contributors = ~0ull;
  ready.set(header);
  net.give(ready);
  EXPECT_EQ(net[1].view(b.handle).marks().ranks, 0x3u);
}

TEST(EndpointMarksTest, closed__tells_a_late_rank_there_is_some_and_whose) {
  Harness net(2);
  const Call& a = net.submit(call_of(0, 2, true), 0);
  net.run_until(net.now + 200ms, [](const Packet&) { return 0; });
  auto retained = std::make_unique<Retained>();
  retained->stage = 1;
  for (std::uint64_t i = 0; i < kFew; ++i) retained->bytes.push_back(pattern(0, 1, 1, i));
  retained->contributors.assign(3, 1);
  net[0].close(a.handle, std::move(retained), 2);
  const Call& late = net.submit(call_of(1, 2, false), 1);
  Packets answers;
  net.run_until(net.now + 20ms, [&answers](const Packet& packet) {
    if (packet.from == 0) answers.push_back(packet);
    return 1;
  });
  ASSERT_FALSE(of_type(answers, TARPON_CLOSED).empty());
  for (const Packet& packet : answers) EXPECT_TRUE(flagged(packet));
  EXPECT_EQ(of_type(answers, TARPON_CLOSED)[0].header().contributors, 2u) << "absent ranks";
  EXPECT_EQ(net[1].view(late.handle).marks().ranks, 1u);
}

}  // namespace
}  // namespace tarpon::endpoint_marks_test
