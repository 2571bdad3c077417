// Sealed ports over the network in memory, and a stranger between them.
#include "transport/ports/sealed_port.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/simulated/simulated_port.h"

namespace tarpon::sealed_port_test {
namespace {

constexpr std::uint32_t kPayload = 1408 - TARPON_TAG_BYTES;

/// Lets a test see and change what the port below receives.
class StrangerPort : public ForwardingPort {
 public:
  using ForwardingPort::ForwardingPort;
  std::span<const RxPacket> receive(Time now) override {
    batch_.clear();
    kept_.clear();
    for (const RxPacket& packet : ForwardingPort::receive(now)) {
      seen.emplace_back(packet.data, packet.data + packet.length);
      add(seen.back(), packet.source);
    }
    if (change) change();
    for (auto& [bytes, source] : kept_) {
      batch_.push_back({bytes.data(), static_cast<std::uint32_t>(bytes.size()), source});
    }
    return batch_;
  }
  void add(std::vector<std::byte> bytes, Rank source) {
    kept_.emplace_back(std::move(bytes), source);
  }

  std::vector<std::vector<std::byte>> seen;
  std::function<void()> change;
  std::vector<std::pair<std::vector<std::byte>, Rank>> kept_;

 private:
  std::vector<RxPacket> batch_;
};

class SealedPortTest : public ::testing::TestWithParam<bool> {
 protected:
  SealedPortTest() {
    for (Rank rank = 0; rank < 3; ++rank) {
      auto wire = std::make_unique<StrangerPort>(network_.make_port(rank));
      wires_.push_back(wire.get());
      ports_.push_back(std::make_unique<SealedPort>(std::move(wire), options(rank)));
    }
  }

  static SealOptions options(Rank rank) {
    SealOptions result{.rank = rank, .ranks = 3, .encrypts = GetParam()};
    result.key.fill(std::byte{42});
    return result;
  }

  /// Sends a packet whose payload has `bytes` bytes of `value`, lent or not.
  void send(Rank from, Rank to, std::uint32_t size, std::byte value, bool lent = false) {
    Port& port = *ports_[from];
    TxPacket& frame = port.transmit_frames(1)[0];
    tarpon_header header{};
    header.magic = TARPON_MAGIC;
    header.sender = from;
    header.length = static_cast<std::uint16_t>(size);
    header.operation = 77;
    std::memcpy(frame.header, &header, sizeof header);
    frame.peer = to;
    frame.length = size;
    frame.payload = frame.room;
    frame.lender = kNoLender;
    if (lent) {
      lent_.assign(size, value);
      frame.payload = lent_.data();
      frame.lender = 1;
    } else {
      std::memset(frame.room, static_cast<int>(value), size);
    }
    port.transmit({&frame, 1});
  }

  std::vector<std::vector<std::byte>> receive(Rank rank) {
    network_.advance_to(network_.now() + 1ms);
    std::vector<std::vector<std::byte>> result;
    for (const RxPacket& packet : ports_[rank]->receive(network_.now())) {
      result.emplace_back(packet.data, packet.data + packet.length);
    }
    return result;
  }

  PortStatistics counted(Rank rank) const { return ports_[rank]->statistics(); }

  SimulatedNetwork network_{{.ranks = 3, .multicasts = true}};
  std::vector<StrangerPort*> wires_;
  std::vector<std::unique_ptr<SealedPort>> ports_;
  std::vector<std::byte> lent_;
};

TEST_P(SealedPortTest, packets__arrive_as_they_were_sent) {
  EXPECT_EQ(ports_[0]->capabilities().max_payload, kPayload);
  EXPECT_EQ(ports_[0]->capabilities().gathers, !GetParam());
  for (const std::uint32_t size : {0u, 8u, 56u, 448u, kPayload}) {
    for (const bool lent : {false, true}) {
      if (lent && GetParam()) continue;
      send(0, 1, size, std::byte{9}, lent);
      const auto got = receive(1);
      ASSERT_EQ(got.size(), 1u) << size;
      ASSERT_EQ(got[0].size(), TARPON_HEADER_BYTES + size);
      tarpon_header header;
      std::memcpy(&header, got[0].data(), sizeof header);
      EXPECT_EQ(header.operation, 77u);
      EXPECT_EQ(tarpon_integrity_of(&header), std::uint32_t{TARPON_INTEGRITY_KEYED});
      for (std::size_t i = TARPON_HEADER_BYTES; i < got[0].size(); ++i) {
        ASSERT_EQ(got[0][i], std::byte{9}) << i;
      }
      const auto& wire = wires_[1]->seen.back();
      EXPECT_EQ(wire.size(), TARPON_HEADER_BYTES + size + TARPON_TAG_BYTES);
      if (size < 448) continue;
      EXPECT_EQ(wire[100] == std::byte{9} && wire[101] == std::byte{9}, !GetParam());
    }
  }
  send(0, kAllRanks, 100, std::byte{5});
  EXPECT_EQ(receive(1).size(), 1u);
  EXPECT_EQ(receive(2).size(), 1u);
  EXPECT_EQ(counted(1).rx_forged + counted(1).rx_replayed, 0u);
}

TEST_P(SealedPortTest, forged__replayed__reflected__truncated__count_and_reach_nobody) {
  send(0, 1, 100, std::byte{1});
  ASSERT_EQ(receive(1).size(), 1u);
  const std::vector<std::byte> good = wires_[1]->seen[0];
  const auto offer = [&](Rank to, std::vector<std::byte> bytes, Rank source) {
    wires_[to]->change = [&, this] { wires_[to]->add(bytes, source); };
    const auto got = receive(to);
    wires_[to]->change = nullptr;
    return got.size();
  };
  EXPECT_EQ(offer(1, good, 0), 0u) << "replayed";
  EXPECT_EQ(counted(1).rx_replayed, 1u);
  EXPECT_EQ(offer(2, good, 0), 0u) << "to another rank than its receiver";
  EXPECT_EQ(counted(2).rx_forged, 1u);
  EXPECT_EQ(offer(0, good, 1), 0u) << "reflected to its sender";
  EXPECT_EQ(counted(0).rx_forged, 1u);

  // A packet that has not come: every changed bit of it is found.
  send(0, 1, 100, std::byte{1});
  wires_[1]->change = [this] { wires_[1]->kept_.clear(); };
  EXPECT_EQ(receive(1).size(), 0u);
  wires_[1]->change = nullptr;
  const std::vector<std::byte> late = wires_[1]->seen.back();
  const std::uint64_t replayed = counted(1).rx_replayed;
  for (std::size_t bit = 0; bit < late.size() * 8; ++bit) {
    auto changed = late;
    changed[bit / 8] ^= std::byte{1} << bit % 8;
    ASSERT_EQ(offer(1, changed, 0), 0u) << bit;
  }
  for (std::size_t size = 0; size < late.size(); ++size) {
    ASSERT_EQ(offer(1, {late.begin(), late.begin() + static_cast<std::ptrdiff_t>(size)}, 0), 0u);
  }
  for (const Rank source : {Rank{2}, kUnknownRank, Rank{7}}) EXPECT_EQ(offer(1, late, source), 0u);
  EXPECT_EQ(counted(1).rx_forged + counted(1).rx_replayed - replayed,
            late.size() * 8 + late.size() + 3);
  EXPECT_LE(counted(1).rx_replayed - replayed, 1u) << "one bit makes it the number that came";
  EXPECT_EQ(offer(1, late, 0), 1u) << "the packet itself still counts";
}

/// The port below has room for such a payload: that of the tag.
TEST_P(SealedPortTest, a_packet_that_has_no_room_for_a_tag__does_not_leave) {
  for (const Rank to : {Rank{1}, kAllRanks}) send(0, to, kPayload + 8, std::byte{1});
  send(0, Rank{3}, 100, std::byte{1});
  EXPECT_EQ(receive(1).size(), 0u);
  EXPECT_EQ(receive(2).size(), 0u);
  EXPECT_TRUE(wires_[1]->seen.empty() && wires_[2]->seen.empty());
  EXPECT_EQ(counted(0).tx_dropped, 3u);
}

TEST_P(SealedPortTest, a_packet_to_all__is_forged_where_its_sender_gets_it) {
  send(0, kAllRanks, 100, std::byte{1});
  ASSERT_EQ(receive(1).size(), 1u);
  wires_[0]->change = [this] { wires_[0]->add(wires_[1]->seen[0], 0); };
  EXPECT_EQ(receive(0).size(), 0u);
  EXPECT_EQ(counted(0).rx_forged, 1u);
}

TEST_P(SealedPortTest, forged_packets_of_far_numbers__leave_the_keys_in_place) {
  send(0, 1, 100, std::byte{1});
  ASSERT_EQ(receive(1).size(), 1u);
  const std::vector<std::byte> good = wires_[1]->seen[0];
  for (std::uint32_t generation = 0; generation < 512; ++generation) {
    wires_[1]->change = [&, this] {
      auto forged = good;
      const std::uint32_t check = generation << SealOptions().packets_of_key_shift | 5;
      std::memcpy(forged.data() + offsetof(tarpon_header, check), &check, sizeof check);
      wires_[1]->add(forged, 0);
    };
    ASSERT_EQ(receive(1).size(), 0u);
    wires_[1]->change = nullptr;
    send(0, 1, 100, std::byte{1});
    ASSERT_EQ(receive(1).size(), 1u) << generation;
  }
}

/// With 8 packets a key in place of 4 million.
TEST_P(SealedPortTest, keys__change__and_packets_of_neighbouring_keys_may_overtake) {
  auto wire = std::make_unique<StrangerPort>(network_.make_port(1));
  wires_[1] = wire.get();
  SealOptions of_sender = options(0), of_receiver = options(1);
  of_sender.packets_of_key_shift = of_receiver.packets_of_key_shift = 3;
  ports_[0] = std::make_unique<SealedPort>(network_.make_port(0), of_sender);
  ports_[1] = std::make_unique<SealedPort>(std::move(wire), of_receiver);
  for (int i = 0; i < 100; ++i) {
    send(0, 1, 16, std::byte{1});
    ASSERT_EQ(receive(1).size(), 1u) << i;
  }
  // Numbers 100 to 107 end the key of 96 to 103; they come in the wrong order.
  for (int i = 0; i < 8; ++i) send(0, 1, 16, std::byte{1});
  wires_[1]->change = [this] { std::reverse(wires_[1]->kept_.begin(), wires_[1]->kept_.end()); };
  EXPECT_EQ(receive(1).size(), 8u);
  // All packets of a key are lost, and then those of several.
  for (const auto& [lost, come] : {std::pair(8, 1u), std::pair(24, 0u)}) {
    wires_[1]->change = [this] { wires_[1]->kept_.clear(); };
    for (int i = 0; i < lost; ++i) send(0, 1, 16, std::byte{1});
    EXPECT_EQ(receive(1).size(), 0u);
    wires_[1]->change = nullptr;
    send(0, 1, 16, std::byte{1});
    EXPECT_EQ(receive(1).size(), come) << lost;
  }
  EXPECT_EQ(counted(1).rx_forged, 1u);
  // A port with the usual keys opens none of the second one.
  ports_[1] = std::make_unique<SealedPort>(network_.make_port(1), options(1));
  send(0, 1, 16, std::byte{1});
  EXPECT_EQ(receive(1).size(), 0u);
}

TEST_P(SealedPortTest, another_key__opens_nothing) {
  SealOptions other = options(1);
  other.key[0] ^= std::byte{1};
  auto wire = std::make_unique<StrangerPort>(network_.make_port(1));
  ports_[1] = std::make_unique<SealedPort>(std::move(wire), other);
  send(0, 1, 100, std::byte{1});
  EXPECT_EQ(receive(1).size(), 0u);
  EXPECT_EQ(counted(1).rx_forged, 1u);
}

TEST_P(SealedPortTest, overtaking__passes__within_the_window) {
  for (int i = 0; i < 100; ++i) send(0, 1, 16, std::byte{1});
  wires_[1]->change = [this] { std::reverse(wires_[1]->kept_.begin(), wires_[1]->kept_.end()); };
  EXPECT_EQ(receive(1).size(), 100u);
  EXPECT_EQ(counted(1).rx_replayed, 0u);
}

TEST_P(SealedPortTest, numbers__are_used_once_in_each_direction) {
  std::map<std::pair<Rank, bool>, std::set<std::uint32_t>> used;  // by receiver
  for (int i = 0; i < 300; ++i) {
    const Rank to = i % 3 == 0 ? kAllRanks : static_cast<Rank>(1 + i % 2);
    send(0, to, 16, std::byte{1});
    for (const Rank rank : {Rank{1}, Rank{2}}) {
      receive(rank);
      for (const auto& bytes : std::exchange(wires_[rank]->seen, {})) {
        std::uint32_t check = 0;
        std::memcpy(&check, bytes.data() + offsetof(tarpon_header, check), sizeof check);
        EXPECT_EQ(check >> 31, to == kAllRanks ? 1u : 0u);
        EXPECT_TRUE((used[{rank, to == kAllRanks}].insert(check).second)) << check;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SealedPortTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "sealed" : "keyed"; });

}  // namespace
}  // namespace tarpon::sealed_port_test
