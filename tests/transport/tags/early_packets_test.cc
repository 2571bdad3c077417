// Packets of operations that this rank has not begun.
#include "transport/tags/early_packets.h"

#include <gtest/gtest.h>

#include <array>

namespace tarpon::early_packets_test {
namespace {

using Parked = EarlyPackets::Parked;

class EarlyPacketsTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kTag = 7;

  Parked park(std::uint32_t number, Rank sender, Time now = Time(1s), Time begun = kNever) {
    tarpon_header header{};
    header.tag = kTag;
    header.operation = number;
    header.sender = sender;
    packet_[0] = static_cast<std::byte>(number);
    return early_.park(header, packet_, begun, now);
  }

  std::array<std::byte, 100> packet_{};
  EarlyPackets early_{
      {.world_size = 3, .operations = 2, .packets_per_peer = 2, .cells = 5, .cell_bytes = 100}};
};

TEST_F(EarlyPacketsTest, take__packets_in_the_order_in_which_they_came) {
  EXPECT_EQ(park(4, 1), Parked::yes);
  EXPECT_EQ(park(4, 2, Time(1s), Time(900ms)), Parked::yes);
  EXPECT_TRUE(early_.has(kTag));
  EXPECT_EQ(early_.parked(), 2u);
  const std::optional<EarlyOperation> taken = early_.take(kTag, 4);
  ASSERT_TRUE(taken);
  EXPECT_FALSE(early_.has(kTag));
  ASSERT_EQ(taken->cells.size(), 2u);
  EXPECT_EQ(early_.packet(taken->cells[0])[0], std::byte{4});
  EXPECT_EQ(taken->peers[1].begun, kNever);
  EXPECT_EQ(taken->peers[2].begun, Time(900ms));
  for (const std::uint32_t cell : taken->cells) early_.release(cell);
  EXPECT_EQ(early_.parked(), 0u);
  EXPECT_FALSE(early_.take(kTag, 4).has_value());
}

TEST_F(EarlyPacketsTest, park__so_many_of_a_peer_and_no_more) {
  EXPECT_EQ(park(4, 1), Parked::yes);
  EXPECT_EQ(park(4, 1), Parked::yes);
  EXPECT_EQ(park(4, 1), Parked::no_room);
  EXPECT_EQ(park(4, 2), Parked::yes);
  const std::optional<EarlyOperation> taken = early_.take(kTag, 4);
  EXPECT_TRUE(taken->peers[1].overrun);
  EXPECT_FALSE(taken->peers[2].overrun);
}

TEST_F(EarlyPacketsTest, park__so_many_operations_and_no_more) {
  EXPECT_EQ(park(4, 1), Parked::yes);
  EXPECT_EQ(park(5, 1), Parked::yes);
  EXPECT_EQ(park(6, 1), Parked::no_room);
  EXPECT_EQ(early_.operations(), 2u);
  EXPECT_FALSE(early_.take_refused(kTag, 5));
  EXPECT_TRUE(early_.take_refused(kTag, 6));
  EXPECT_FALSE(early_.take_refused(kTag, 6));  // told once
}

TEST_F(EarlyPacketsTest, park__a_stale_operation_makes_room) {
  EXPECT_EQ(park(4, 1, Time(1s)), Parked::yes);
  EXPECT_EQ(park(5, 1, Time(2s)), Parked::yes);
  EXPECT_EQ(park(6, 1, Time(1s) + EarlyPackets::kStale), Parked::yes);
  EXPECT_FALSE(early_.take(kTag, 4).has_value());
  EXPECT_TRUE(early_.take_refused(kTag, 4));
  EXPECT_EQ(early_.take_stale_tags(), std::vector<std::uint32_t>{kTag});
  EXPECT_TRUE(early_.take_stale_tags().empty());
  EXPECT_EQ(early_.parked(), 2u);
}

TEST_F(EarlyPacketsTest, abort__the_operation_will_not_run) {
  EXPECT_EQ(park(4, 1), Parked::yes);
  EXPECT_TRUE(early_.abort(kTag, 4, 2, TARPON_ABORT_LATE, 0b100, Time(1s)));
  EXPECT_EQ(early_.parked(), 0u);
  EXPECT_EQ(park(4, 2), Parked::aborted);
  const std::optional<EarlyOperation> taken = early_.take(kTag, 4);
  EXPECT_TRUE(taken->peers[1].overrun);  // what was parked is gone
  EXPECT_TRUE(taken->peers[2].aborted);
  EXPECT_EQ(taken->peers[2].abort_ranks, 0b100u);
}

TEST_F(EarlyPacketsTest, abort__of_a_late_peer_keeps_the_packets_of_the_others) {
  EXPECT_EQ(park(4, 1), Parked::yes);
  EXPECT_TRUE(early_.abort(kTag, 4, 2, TARPON_ABORT_EXPIRED, 0b100, Time(1s)));
  EXPECT_EQ(early_.parked(), 1u);
  EXPECT_TRUE(early_.has_expired(kTag, 4, 2));
  EXPECT_FALSE(early_.has_expired(kTag, 4, 1));
  EXPECT_FALSE(early_.has_expired(kTag, 5, 2));
}

TEST_F(EarlyPacketsTest, from__what_a_peer_has_said_stays) {
  EarlyOperation::FromPeer* const from = early_.from(kTag, 4, 1, Time(1s));
  ASSERT_NE(from, nullptr);
  from->announced = true;
  from->readies = 3;
  EXPECT_EQ(early_.from(kTag, 4, 1, Time(2s))->readies, 3u);
  EXPECT_EQ(early_.operations(), 1u);
}

TEST_F(EarlyPacketsTest, forget__a_tag_with_its_packets) {
  EXPECT_EQ(park(4, 1), Parked::yes);
  early_.forget(kTag + 1);
  EXPECT_TRUE(early_.has(kTag));
  EXPECT_EQ(park(5, 1), Parked::yes);
  early_.forget(kTag);
  EXPECT_FALSE(early_.has(kTag));
  EXPECT_EQ(early_.parked(), 0u);
}

}  // namespace
}  // namespace tarpon::early_packets_test
