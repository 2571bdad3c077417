// Control packets: what fits each type, and what their fields mean.
#include "transport/wire/control_packet.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace tarpon::control_packet_test {
namespace {

tarpon_header header_of(std::uint8_t type, std::uint32_t slot = 0, std::uint64_t ranks = 0) {
  tarpon_header header{};
  header.type = type;
  header.sender = 2;
  header.slot = slot;
  header.contributors = ranks;
  return header;
}

bool fits(const tarpon_header& header, std::size_t payload_bytes, std::size_t max_entries = 4) {
  const std::vector<std::byte> payload(payload_bytes);
  return ControlPacket(header, payload).is_well_formed(max_entries);
}

TEST(ControlPacketTest, is_well_formed__by_type) {
  EXPECT_TRUE(fits(header_of(TARPON_READY), sizeof(tarpon_ready)));
  EXPECT_FALSE(fits(header_of(TARPON_READY), sizeof(tarpon_ready) - 1));
  EXPECT_TRUE(fits(header_of(TARPON_REPAIR), 0));
  EXPECT_TRUE(fits(header_of(TARPON_REPAIR), 3 * sizeof(tarpon_range)));
  EXPECT_FALSE(fits(header_of(TARPON_REPAIR), sizeof(tarpon_range) + 1));
  EXPECT_TRUE(fits(header_of(TARPON_ABORT, TARPON_ABORT_END - 1), 0));
  EXPECT_FALSE(fits(header_of(TARPON_ABORT, TARPON_ABORT_END), 0));
  EXPECT_FALSE(fits(header_of(TARPON_ABORT), 1));
  EXPECT_TRUE(fits(header_of(TARPON_HEARTBEAT), 4 * sizeof(tarpon_passed)));
  EXPECT_FALSE(fits(header_of(TARPON_HEARTBEAT), 5 * sizeof(tarpon_passed)));
  EXPECT_FALSE(fits(header_of(TARPON_HEARTBEAT, TARPON_HEARTBEAT_END), 0));
  EXPECT_FALSE(fits(header_of(TARPON_AGREEMENT), sizeof(AgreementPayload) - 1));
}

TEST(ControlPacketTest, repeats__are_none_of_an_answer_to_a_mismatch) {
  const tarpon_header third = header_of(TARPON_READY, 3);
  EXPECT_EQ(ControlPacket(third, {}).repeats(), 3u);
  const tarpon_header answer = header_of(TARPON_READY, TARPON_READY_ANSWER);
  EXPECT_TRUE(ControlPacket(answer, {}).is_mismatch_answer());
  EXPECT_EQ(ControlPacket(answer, {}).repeats(), 0u);
}

TEST(ControlPacketTest, ranges__are_cut_and_in_order) {
  const std::array<tarpon_range, 5> sent{{{2, 3}, {1, 1}, {5, 0}, {8, 100}, {10, 1}}};
  std::array<std::byte, sizeof sent> payload;
  std::memcpy(payload.data(), &sent, sizeof sent);
  const tarpon_header header = header_of(TARPON_REPAIR);
  std::array<tarpon_range, kMaxRepairRanges> ranges{};
  ASSERT_EQ(ControlPacket(header, payload).ranges(10, ranges), 2u);
  EXPECT_EQ(ranges[0].first, 2u);
  EXPECT_EQ(ranges[0].count, 3u);
  EXPECT_EQ(ranges[1].first, 8u);
  EXPECT_EQ(ranges[1].count, 2u) << "cut at slot 10";
}

TEST(ControlPacketTest, blamed__is_the_sender_where_no_rank_of_the_job_is_named) {
  const tarpon_header named = header_of(TARPON_ABORT, 0, 0b1010);
  EXPECT_EQ(ControlPacket(named, {}).blamed(0b1111), 0b1010u);
  const tarpon_header stranger = header_of(TARPON_ABORT, 0, 0b10000);
  EXPECT_EQ(ControlPacket(stranger, {}).blamed(0b1111), 0b0100u);
}

TEST(ControlDueTest, slot__is_that_of_the_type) {
  EXPECT_EQ((ControlDue{.type = TARPON_READY, .repeats = 4}).slot(), 4u);
  EXPECT_EQ((ControlDue{.type = TARPON_CREDIT, .grant = 5}).slot(), 5u);
  EXPECT_EQ((ControlDue{.type = TARPON_ABORT, .reason = 6}).slot(), 6u);
  EXPECT_EQ((ControlDue{.type = TARPON_CLOSED}).slot(), 0u);
}

}  // namespace
}  // namespace tarpon::control_packet_test
