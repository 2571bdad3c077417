// PortLines: packets go to the line of their communicator, with the ranks of that line.
#include "transport/ports/port_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

namespace tarpon::port_lines_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Keeps the packets that are sent. Receives the packets that the test offers.
class FakePort final : public Port {
 public:
  const PortCapabilities& capabilities() const override { return capabilities_; }
  std::span<TxPacket> transmit_frames(std::size_t at_most) override {
    frames_.assign(at_most, TxPacket{});
    return frames_;
  }
  void transmit(std::span<TxPacket> packets) override {
    sent.insert(sent.end(), packets.begin(), packets.end());
  }
  std::optional<Error> failure() const override { return broken; }
  std::size_t unsent() const override { return waiting; }
  bool holds(Lender lender) const override {
    ++asked;
    return held[lender];
  }
  void drop_unsent(Lender lender) override {
    held[lender] = false;
    ++dropped;
    waiting = std::min(waiting, waiting_after_drop);
  }
  std::span<const RxPacket> receive(Time) override { return offered; }
  void wait(Time, Time until) override { waited_until = until; }
  void wake() override {}
  void publish(std::uint32_t tag, std::uint32_t lowest) override { published[tag] = lowest; }
  PortStatistics statistics() const override { return {}; }

  std::size_t waiting = 5;
  std::size_t waiting_after_drop = SIZE_MAX;
  std::size_t dropped = 0;  // calls of drop_unsent()
  std::optional<Error> broken;
  mutable std::size_t asked = 0;  // calls of holds()
  std::vector<TxPacket> sent;
  std::vector<RxPacket> offered;
  mutable std::map<Lender, bool> held;
  std::map<std::uint32_t, std::uint32_t> published;
  Time waited_until{};
  PortCapabilities capabilities_{.name = "fake", .max_payload = 1024};

 private:
  std::vector<TxPacket> frames_;
};

class PortLinesTest : public testing::Test {
 protected:
  PortLinesTest() {
    auto owned = std::make_unique<FakePort>();
    port_ = owned.get();
    lines_ = std::make_unique<PortLines>(std::move(owned), 4);
  }

  /// A packet of `source` for `communicator`; `bytes` of a header.
  void offer(Rank source, std::uint16_t communicator, std::uint32_t bytes = TARPON_HEADER_BYTES) {
    tarpon_header header{};
    header.communicator = communicator;
    auto& memory = memory_.emplace_back(TARPON_HEADER_BYTES);
    std::memcpy(memory.data(), &header, sizeof header);
    port_->offered.push_back({memory.data(), bytes, source});
  }

  static std::vector<Rank> sources(std::span<const RxPacket> packets) {
    std::vector<Rank> found;
    for (const RxPacket& packet : packets) found.push_back(packet.source);
    return found;
  }

  static void send(PortLine& line, Rank peer, Lender lender) {
    auto frames = line.transmit_frames(1);
    frames[0].peer = peer;
    frames[0].lender = lender;
    line.transmit(frames);
  }

  FakePort* port_ = nullptr;
  std::unique_ptr<PortLines> lines_;
  std::vector<std::vector<std::byte>> memory_;
};

TEST_F(PortLinesTest, receive__sorts_by_communicator_and_renumbers_the_sources) {
  const auto part = lines_->open(7, {3, 1});
  offer(3, 7);
  offer(2, 0);
  offer(1, 7);
  offer(1, 0);
  EXPECT_FALSE(part->has_packets());
  EXPECT_THAT(sources(lines_->first().receive({})), ElementsAre(2, 1));
  EXPECT_TRUE(part->has_packets());
  EXPECT_THAT(sources(part->receive({})), ElementsAre(0, 1));
  EXPECT_FALSE(part->has_packets());
  EXPECT_THAT(sources(part->receive({})), IsEmpty());
}

TEST_F(PortLinesTest, receive__packets_of_no_line_stay_with_the_job) {
  const auto part = lines_->open(7, {3, 1});
  offer(2, 7);             // no rank of that line
  offer(kUnknownRank, 7);  // a stranger
  offer(3, 8);             // no such line
  offer(3, 7, 12);         // too short for a header
  EXPECT_EQ(lines_->first().receive({}).size(), 4u);
  EXPECT_FALSE(part->has_packets());
}

TEST_F(PortLinesTest, receive__a_line_that_is_not_asked_loses_its_packets) {
  const auto part = lines_->open(7, {3, 1});
  offer(3, 7);
  static_cast<void>(lines_->first().receive({}));
  port_->offered.clear();
  static_cast<void>(lines_->first().receive({}));
  EXPECT_FALSE(part->has_packets());
}

TEST_F(PortLinesTest, transmit__renumbers_the_peers_and_lenders_of_lines_differ) {
  const auto part = lines_->open(7, {3, 1});
  constexpr Lender kLender = 0x0000'0012'0000'0003;
  send(*part, 0, kLender);
  send(*part, 1, kNoLender);
  send(lines_->first(), 2, kLender);
  ASSERT_EQ(port_->sent.size(), 3u);
  EXPECT_EQ(port_->sent[0].peer, 3);
  EXPECT_EQ(port_->sent[1].peer, 1);
  EXPECT_EQ(port_->sent[1].lender, kNoLender);
  EXPECT_EQ(port_->sent[2].peer, 2);
  EXPECT_NE(port_->sent[0].lender, port_->sent[2].lender);
  port_->held[port_->sent[0].lender] = true;
  EXPECT_TRUE(part->holds(kLender));
  EXPECT_FALSE(lines_->first().holds(kLender));
  part->drop_unsent(kLender);
  EXPECT_FALSE(part->holds(kLender));
}

TEST_F(PortLinesTest, a_line_that_goes__drops_its_packets_and_no_others) {
  auto part = lines_->open(7, {3, 1});
  send(*part, 0, 12);
  send(*part, 0, 13);
  send(lines_->first(), 2, 12);
  for (const TxPacket& packet : port_->sent) port_->held[packet.lender] = true;
  part.reset();
  EXPECT_FALSE(port_->held[port_->sent[0].lender]);
  EXPECT_FALSE(port_->held[port_->sent[1].lender]);
  EXPECT_TRUE(lines_->first().holds(12));
  lines_->first().drop_waiting();
  EXPECT_FALSE(lines_->first().holds(12));
}

TEST_F(PortLinesTest, unsent__of_a_port_that_does_not_send_in_order) {
  port_->capabilities_.in_order = false;
  const auto part = lines_->open(7, {3, 1});
  send(*part, 0, kNoLender);
  send(lines_->first(), 2, 12);
  port_->waiting = 1;  // perhaps the first packet
  EXPECT_EQ(part->unsent(), 1u);
  port_->waiting = 0;
  EXPECT_EQ(part->unsent(), 0u);
}

TEST_F(PortLinesTest, unsent__packets_that_other_lines_gave_later_do_not_count) {
  const auto part = lines_->open(7, {3, 1});
  port_->waiting = 1;
  send(*part, 0, kNoLender);
  EXPECT_EQ(part->unsent(), 1u);
  port_->waiting = 3;
  send(lines_->first(), 2, 12);
  send(lines_->first(), 2, 13);
  EXPECT_EQ(part->unsent(), 3u);
  port_->waiting = 2;  // the first packet is sent
  EXPECT_EQ(part->unsent(), 0u);
  EXPECT_EQ(lines_->first().unsent(), 2u);
  port_->waiting = 0;
  EXPECT_EQ(lines_->first().unsent(), 0u);
}

TEST_F(PortLinesTest, unsent__dropped_packets_behind_those_of_the_line_do_not_count_as_sent) {
  const auto part = lines_->open(7, {3, 1});
  port_->waiting = 2;
  send(*part, 0, 5);
  send(lines_->first(), 2, 12);
  port_->waiting_after_drop = 1;
  lines_->first().drop_unsent(12);
  EXPECT_EQ(part->unsent(), 1u);
  port_->waiting = 0;
  EXPECT_EQ(part->unsent(), 0u);
}

TEST_F(PortLinesTest, transmit__a_port_that_is_never_empty_costs_little) {
  constexpr Lender kOperations = 100'000;
  for (Lender lender = 1; lender <= kOperations; ++lender) {
    send(lines_->first(), 2, lender);
    port_->held[port_->sent.back().lender] = true;
    if (lender > 8) port_->held[port_->sent[lender - 9].lender] = false;
  }
  EXPECT_LT(port_->asked, 2 * kOperations);
  lines_->first().drop_waiting();
  EXPECT_LT(port_->dropped, 200u);
  for (Lender lender = kOperations - 7; lender <= kOperations; ++lender) {
    EXPECT_FALSE(lines_->first().holds(lender));
  }
}

TEST_F(PortLinesTest, fail__all_lines_have_failed) {
  const auto part = lines_->open(7, {3, 1});
  EXPECT_EQ(part->failure(), std::nullopt);
  lines_->fail(Error::make(Error::Code::io, "a test says so"));
  for (const PortLine* const line : {&lines_->first(), part.get()}) {
    ASSERT_TRUE(line->failure());
    EXPECT_EQ(line->failure()->message, "a test says so");
  }
  port_->broken = Error::make(Error::Code::io, "the port itself");
  EXPECT_EQ(part->failure()->message, "the port itself");
}

TEST_F(PortLinesTest, publish__windows_are_those_of_the_job) {
  auto part = lines_->open(7, {3, 1});
  part->publish(1, 5);
  EXPECT_THAT(port_->published, IsEmpty());
  lines_->first().publish(1, 6);
  EXPECT_EQ(port_->published[1], 6u);
  part.reset();
  offer(3, 7);
  EXPECT_EQ(lines_->first().receive({}).size(), 1u);  // the line is gone
}

}  // namespace
}  // namespace tarpon::port_lines_test
