// TrainPool: what is left of queued trains when a lender takes its memory back. No socket.
#include "transport/ports/udp_train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace tarpon::udp_train_test {
namespace {

using testing::ElementsAre;

constexpr std::uint32_t kFull = 128;  // bytes of payload
constexpr Lender kGone = 7;
constexpr Lender kStays = 9;

struct Packet {
  std::uint32_t number = 0;
  Lender lender = kNoLender;
  Rank peer = 0;
  std::uint32_t length = kFull;
};

/// A pool, and memory that is lent to it: packet n's payload lies at n x kFull.
class Rig {
 public:
  void accept(const std::vector<Packet>& packets) {
    const std::span<TxPacket> frames = pool.offer(packets.size());
    ASSERT_EQ(frames.size(), packets.size());
    for (std::size_t i = 0; i < packets.size(); ++i) {
      frames[i].peer = packets[i].peer;
      frames[i].length = packets[i].length;
      frames[i].lender = packets[i].lender;
      std::memcpy(frames[i].header, &packets[i].number, sizeof packets[i].number);
      if (packets[i].lender != kNoLender) frames[i].payload = payload_of(packets[i].number);
    }
    pool.accept(frames);
  }

  /// Numbers of the packets of every queued train.
  std::vector<std::vector<std::uint32_t>> queued() const {
    std::vector<std::vector<std::uint32_t>> trains;
    for (std::size_t i = 0; i < pool.queued(); ++i) {
      trains.push_back(numbers_of(pool.queued_train(i)));
    }
    return trains;
  }

  std::uint64_t dropped() const {
    PortStatistics statistics;
    pool.count(statistics);
    return statistics.tx_dropped;
  }

  TrainPool pool{{.max_payload = kFull, .gso_segments = 8}, 3};

 private:
  const std::byte* payload_of(std::uint32_t number) const {
    return memory_.data() + std::size_t{number} * kFull;
  }

  /// As they would be sent. The sizes that the train claims have to be those of its pieces.
  std::vector<std::uint32_t> numbers_of(std::uint32_t train) const {
    std::vector<iovec> pieces(2 * pool.frames());
    pieces.resize(pool.gather(train, pieces.data()));
    std::vector<std::byte> bytes;
    for (const iovec& piece : pieces) {
      const auto* at = static_cast<const std::byte*>(piece.iov_base);
      bytes.insert(bytes.end(), at, at + piece.iov_len);
    }
    const Train& claimed = pool.train(train);
    EXPECT_EQ(claimed.bytes, bytes.size());
    EXPECT_EQ(claimed.packets, (bytes.size() + claimed.segment - 1) / claimed.segment);
    std::vector<std::uint32_t> numbers;
    for (std::size_t at = 0; at < bytes.size(); at += claimed.segment) {
      std::memcpy(&numbers.emplace_back(), &bytes[at], sizeof(std::uint32_t));
    }
    return numbers;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(64 * kFull);
};

TEST(TrainPoolTest, drop_queued__takes_the_packets_of_one_lender_alone) {
  Rig rig;
  rig.accept({{.number = 0, .lender = kGone, .peer = 0},
              {.number = 1, .lender = kGone, .peer = 0},
              {.number = 2, .lender = kStays, .peer = 1},
              {.number = 3, .peer = 2},
              {.number = 4, .lender = kGone, .peer = 1}});
  EXPECT_TRUE(rig.pool.holds(kGone));
  rig.pool.drop_queued(kGone);
  EXPECT_THAT(rig.queued(), ElementsAre(ElementsAre(2), ElementsAre(3)));
  EXPECT_FALSE(rig.pool.holds(kGone));
  EXPECT_TRUE(rig.pool.holds(kStays));
  EXPECT_EQ(rig.pool.unsent(), 2u);
  EXPECT_EQ(rig.dropped(), 3u);
}

TEST(TrainPoolTest, drop_queued__a_train_goes_on_with_the_packets_of_others) {
  Rig rig;
  rig.accept({{.number = 0, .lender = kGone},
              {.number = 1, .lender = kStays},
              {.number = 2, .lender = kGone},
              {.number = 3},
              {.number = 4, .lender = kStays, .length = 64},  // ends the train
              {.number = 5, .lender = kStays},
              {.number = 6, .lender = kStays},
              {.number = 7, .lender = kGone, .length = 64}});
  ASSERT_THAT(rig.queued(), ElementsAre(ElementsAre(0, 1, 2, 3, 4), ElementsAre(5, 6, 7)));
  rig.pool.drop_queued(kGone);
  EXPECT_THAT(rig.queued(), ElementsAre(ElementsAre(1, 3, 4), ElementsAre(5, 6)));
  EXPECT_EQ(rig.dropped(), 3u);
}

TEST(TrainPoolTest, drop_queued__a_short_packet_may_be_all_that_is_left_of_a_train) {
  Rig rig;
  rig.accept({{.number = 0, .lender = kGone}, {.number = 1, .lender = kStays, .length = 64}});
  rig.pool.drop_queued(kGone);
  EXPECT_THAT(rig.queued(), ElementsAre(ElementsAre(1)));
}

TEST(TrainPoolTest, drop_queued__frees_each_frame_once) {
  Rig rig;
  const std::size_t frames = rig.pool.frames();
  for (int round = 0; round < 100; ++round) {
    std::vector<Packet> packets;
    for (std::uint32_t i = 0; i < 60; ++i) {
      packets.push_back({.number = i, .lender = i % 5 < 3 ? kGone : kStays, .peer = Rank(i / 20)});
    }
    rig.accept(packets);
    rig.pool.drop_queued(kGone);
    EXPECT_EQ(rig.pool.unsent(), 24u);
    rig.pool.drop_queued(kGone);
    EXPECT_EQ(rig.pool.unsent(), 24u);
    while (rig.pool.queued() > 0) rig.pool.settle(rig.pool.pop(), 0);
    EXPECT_EQ(rig.pool.unsent(), 0u);
    EXPECT_FALSE(rig.pool.holds(kStays));
  }
  const std::span<TxPacket> all = rig.pool.offer(frames + 1);
  ASSERT_EQ(all.size(), frames);
  std::vector<std::byte*> headers;
  for (const TxPacket& frame : all) headers.push_back(frame.header);
  std::sort(headers.begin(), headers.end());
  EXPECT_EQ(std::adjacent_find(headers.begin(), headers.end()), headers.end());
}

TEST(TrainPoolTest, drop_queued__what_was_on_its_way_and_comes_back_is_dropped_too) {
  Rig rig;
  rig.accept({{.number = 0, .lender = kGone}, {.number = 1, .lender = kStays}});
  EXPECT_EQ(rig.pool.settle(rig.pool.pop(), EIO), SendOutcome::waiting);  // packet by packet now
  EXPECT_TRUE(rig.pool.holds(kGone));
  rig.pool.drop_queued(kGone);
  EXPECT_THAT(rig.queued(), ElementsAre(ElementsAre(1)));
  EXPECT_FALSE(rig.pool.holds(kGone));
}

TEST(TrainPoolTest, holds__not_what_is_free_again) {
  Rig rig;
  EXPECT_FALSE(rig.pool.holds(kGone));
  rig.accept({{.number = 0, .lender = kGone}, {.number = 1, .lender = kStays, .peer = 1}});
  rig.pool.settle(rig.pool.pop(), 0);
  EXPECT_FALSE(rig.pool.holds(kGone));
  EXPECT_TRUE(rig.pool.holds(kStays));
  rig.accept({{.number = 2}});  // in the frame that packet 0 was in
  EXPECT_FALSE(rig.pool.holds(kGone));
}

TEST(TrainPoolTest, accept__packets_for_all_ranks_are_trains_of_their_own) {
  TrainPool pool({.max_payload = kFull, .gso_segments = 8}, 3, 1, true);
  const std::span<TxPacket> frames = pool.offer(5);
  const std::vector<Rank> peers{2, kAllRanks, kAllRanks, 3, 0};
  for (std::size_t i = 0; i < frames.size(); ++i) {
    frames[i].peer = peers[i];
    frames[i].length = kFull;
  }
  pool.accept(frames);
  std::vector<Rank> to;
  for (std::size_t i = 0; i < pool.queued(); ++i) {
    to.push_back(pool.train(pool.queued_train(i)).peer);
  }
  EXPECT_THAT(to, ElementsAre(2, 3, 0)) << "3 stands for all";
  EXPECT_EQ(pool.train(pool.queued_train(1)).packets, 2u);
  PortStatistics statistics;
  pool.count(statistics);
  EXPECT_EQ(statistics.tx_dropped, 1u) << "there is no rank 3";
}

TEST(TrainPoolTest, accept__drops_packets_for_all_ranks_without_a_group) {
  TrainPool pool({.max_payload = kFull, .gso_segments = 8}, 3);
  const std::span<TxPacket> frames = pool.offer(1);
  frames[0].peer = kAllRanks;
  pool.accept(frames);
  EXPECT_EQ(pool.queued(), 0u);
}

}  // namespace
}  // namespace tarpon::udp_train_test
