// FaultPort: every fault at its rate, repeated by its seed, gone after heal().
#include "transport/ports/fault_port.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

namespace tarpon::fault_port_test {
namespace {

/// Receives numbered packets: each is its number, repeated.
class NumberedPort : public Port {
 public:
  explicit NumberedPort(std::uint32_t words) : words_(words) {}

  const PortCapabilities& capabilities() const override { return capabilities_; }
  std::span<TxPacket> transmit_frames(std::size_t) override { return {}; }
  void transmit(std::span<TxPacket>) override {}
  std::size_t unsent() const override { return 0; }
  bool holds(Lender lender) const override { return lender == held; }
  void drop_unsent(Lender lender) override { dropped.push_back(lender); }
  std::span<const RxPacket> receive(Time) override {
    memory_.assign(std::size_t{offered_} * words_, 0);
    batch_.clear();
    for (std::uint32_t i = 0; i < offered_; ++i) {
      std::uint32_t* at = memory_.data() + std::size_t{i} * words_;
      std::fill(at, at + words_, next_++);
      batch_.push_back({reinterpret_cast<const std::byte*>(at), words_ * 4, Rank{3}});
    }
    offered_ = 0;
    return batch_;
  }
  void wait(Time, Time until) override { waited_until = until; }
  void wake() override {}
  PortStatistics statistics() const override { return {}; }

  void offer(std::uint32_t packets) { offered_ = packets; }
  Time waited_until = kNever;
  Lender held = kNoLender;
  std::vector<Lender> dropped;

 private:
  PortCapabilities capabilities_{.name = "numbered", .max_payload = 1024, .checksums = true};
  std::uint32_t words_;
  std::uint32_t offered_ = 0;
  std::uint32_t next_ = 0;
  std::vector<std::uint32_t> memory_;
  std::vector<RxPacket> batch_;
};

constexpr std::uint32_t kWords = 16;

/// A FaultPort over a NumberedPort, and all that came out of it.
struct Rig {
  explicit Rig(const FaultOptions& options) {
    auto owned = std::make_unique<NumberedPort>(kWords);
    inner = owned.get();
    port = std::make_unique<FaultPort>(std::move(owned), options);
  }

  void pass(std::uint32_t packets, Time now = Time{}) {
    inner->offer(packets);
    for (const RxPacket& packet : port->receive(now)) {
      EXPECT_EQ(packet.source, 3);
      out.emplace_back(packet.data, packet.data + packet.length);
    }
  }

  NumberedPort* inner = nullptr;
  std::unique_ptr<FaultPort> port;
  std::vector<std::vector<std::byte>> out;
};

std::uint32_t word(const std::vector<std::byte>& packet, std::size_t index) {
  std::uint32_t value = 0;
  std::memcpy(&value, packet.data() + 4 * index, sizeof value);
  return value;
}

/// Bits that differ from the packet that was sent, whose number all other words repeat.
int flipped_bits(const std::vector<std::byte>& packet) {
  std::map<std::uint32_t, int> votes;
  for (std::size_t i = 0; i < packet.size() / 4; ++i) ++votes[word(packet, i)];
  const auto most = std::max_element(votes.begin(), votes.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  int bits = 0;
  for (std::size_t i = 0; i < packet.size() / 4; ++i) {
    bits += __builtin_popcount(word(packet, i) ^ most->first);
  }
  return bits;
}

void expect_rate(std::uint64_t events, std::uint64_t trials, double p) {
  const double mean = static_cast<double>(trials) * p;
  const double sigma = std::sqrt(mean * (1 - p));
  EXPECT_NEAR(static_cast<double>(events), mean, 5 * sigma) << "of " << trials << " with p " << p;
}

constexpr std::uint32_t kPackets = 100'000;

TEST(FaultPortTest, receive__without_faults_lends_what_came) {
  Rig rig({});
  rig.pass(100);
  ASSERT_EQ(rig.out.size(), 100u);
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ(word(rig.out[i], 0), i);
  EXPECT_EQ(rig.port->next_release(), kNever);
  EXPECT_TRUE(rig.port->capabilities().checksums);
}

TEST(FaultPortTest, receive__loses_at_the_rate) {
  for (const double p : {0.001, 0.05, 0.3}) {
    Rig rig({.loss = p});
    rig.pass(kPackets);
    EXPECT_EQ(rig.out.size() + rig.port->faults().lost, kPackets);
    expect_rate(rig.port->faults().lost, kPackets, p);
  }
  Rig all({.loss = 1});
  all.pass(1000);
  EXPECT_TRUE(all.out.empty());
}

TEST(FaultPortTest, receive__duplicates_at_the_rate_both_unharmed) {
  Rig rig({.duplicate = 0.1});
  rig.pass(kPackets);
  EXPECT_EQ(rig.out.size(), kPackets + rig.port->faults().duplicated);
  expect_rate(rig.port->faults().duplicated, kPackets, 0.1);
  std::map<std::uint32_t, int> seen;
  for (const auto& packet : rig.out) {
    EXPECT_EQ(flipped_bits(packet), 0);
    ++seen[word(packet, 0)];
  }
  EXPECT_EQ(seen.size(), kPackets);
}

TEST(FaultPortTest, receive__flips_exactly_one_bit_at_the_rate) {
  Rig rig({.corrupt = 0.05});
  EXPECT_FALSE(rig.port->capabilities().checksums);
  rig.pass(kPackets);
  std::uint64_t corrupted = 0;
  for (const auto& packet : rig.out) {
    const int bits = flipped_bits(packet);
    EXPECT_LE(bits, 1);
    corrupted += static_cast<std::uint64_t>(bits);
  }
  EXPECT_EQ(corrupted, rig.port->faults().corrupted);
  expect_rate(corrupted, kPackets, 0.05);
}

TEST(FaultPortTest, receive__cuts_at_the_rate_to_every_shorter_length) {
  Rig rig({.truncate = 0.2});
  EXPECT_FALSE(rig.port->capabilities().checksums);
  rig.pass(kPackets);
  std::uint64_t cut = 0;
  std::map<std::size_t, std::uint64_t> lengths;
  for (const auto& packet : rig.out) {
    EXPECT_LE(packet.size(), kWords * 4u);
    if (packet.size() == kWords * 4u) continue;
    ++cut;
    ++lengths[packet.size()];
  }
  EXPECT_EQ(cut, rig.port->faults().truncated);
  expect_rate(cut, kPackets, 0.2);
  EXPECT_EQ(lengths.begin()->first, 1u);
  EXPECT_EQ(lengths.size(), kWords * 4u - 1);
}

TEST(FaultPortTest, receive__holds_back_at_the_rate_and_releases_in_time) {
  Rig rig({.reorder = 0.3, .reorder_delay = 1ms});
  rig.pass(kPackets, Time(5ms));
  const std::uint64_t held = rig.port->faults().reordered;
  expect_rate(held, kPackets, 0.3);
  const Time next = rig.port->next_release();
  EXPECT_GT(next, Time(5ms));
  EXPECT_LE(next, Time(6ms));
  rig.port->wait(Time(5ms), Time(7ms));
  EXPECT_EQ(rig.inner->waited_until, next);
  rig.pass(0, next - 1ns);
  const std::size_t before = rig.out.size();
  EXPECT_LT(before, kPackets);
  rig.pass(0, next);
  EXPECT_GT(rig.out.size(), before);
  rig.pass(0, Time(6ms));
  EXPECT_EQ(rig.out.size(), kPackets);
  EXPECT_EQ(rig.port->next_release(), kNever);
  std::map<std::uint32_t, int> seen;
  for (const auto& packet : rig.out) ++seen[word(packet, 0)];
  EXPECT_EQ(seen.size(), kPackets);
}

const FaultOptions kEverything{.loss = 0.1,
                               .duplicate = 0.1,
                               .reorder = 0.1,
                               .corrupt = 0.1,
                               .truncate = 0.1,
                               .reorder_delay = 1ms,
                               .seed = 42};

TEST(FaultPortTest, receive__the_seed_repeats_everything_another_one_does_not) {
  Rig a(kEverything);
  Rig b(kEverything);
  FaultOptions other = kEverything;
  other.seed = 43;
  Rig c(other);
  for (Rig* rig : {&a, &b, &c}) {
    for (int i = 0; i < 20; ++i) rig->pass(100, Time(i * 200us));
  }
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.out, c.out);
}

TEST(FaultPortTest, drop_unsent__goes_to_the_inner_port_and_so_does_holds) {
  Rig rig({});
  rig.inner->held = 5;
  EXPECT_TRUE(rig.port->holds(5));
  EXPECT_FALSE(rig.port->holds(6));
  rig.port->drop_unsent(5);
  EXPECT_EQ(rig.inner->dropped, std::vector<Lender>{5});
}

TEST(FaultPortTest, heal__no_more_faults_and_what_was_held_still_comes) {
  Rig rig(kEverything);
  rig.pass(1000);
  const FaultStatistics before = rig.port->faults();
  EXPECT_GT(before.reordered, 0u);
  rig.port->heal();
  rig.out.clear();
  rig.pass(0, Time(2ms));
  EXPECT_GT(rig.out.size(), 0u);
  rig.out.clear();
  rig.pass(1000, Time(2ms));
  ASSERT_EQ(rig.out.size(), 1000u);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(word(rig.out[i], 0), 1000 + i);
    EXPECT_EQ(flipped_bits(rig.out[i]), 0);
  }
  EXPECT_EQ(rig.port->faults().lost, before.lost);
  EXPECT_EQ(rig.port->faults().corrupted, before.corrupted);
}

}  // namespace
}  // namespace tarpon::fault_port_test
