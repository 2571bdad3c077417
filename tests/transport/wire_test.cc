// The header's checks in their order, and the check sum over header and payload.
#include "bpf/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "transport/integrity.h"
#include "transport/wire/signature_hash.h"

namespace tarpon::wire_test {
namespace {

constexpr std::uint32_t kJob = 0x1234;

tarpon_header good() {
  tarpon_header header{};
  header.magic = TARPON_MAGIC;
  header.version = TARPON_WIRE_VERSION;
  header.type = TARPON_DATA;
  header.job = kJob;
  header.length = 8;
  return header;
}

TEST(WireTest, check_header__accepts_every_type_stage_and_integrity) {
  for (std::uint8_t type = TARPON_READY; type < TARPON_TYPE_END; ++type) {
    for (std::uint8_t stage = 0; stage < TARPON_MAX_STAGES; ++stage) {
      for (int flags = 0; flags < TARPON_FLAG_RESERVED; ++flags) {
        if ((flags & TARPON_FLAG_RESERVED) != 0) continue;
        tarpon_header header = good();
        header.type = type;
        header.stage = stage;
        header.flags = static_cast<std::uint8_t>(flags);
        EXPECT_EQ(tarpon_check_header(&header, kJob, 8 + tarpon_tag_bytes(&header)),
                  TARPON_HEADER_OK);
      }
    }
  }
}

TEST(WireTest, flows__are_a_power_of_two) {
  tarpon_header header = good();
  for (const std::uint32_t flows : {1u, 2u, 4u, 8u}) {
    EXPECT_EQ(tarpon_flows(&header), flows);
    EXPECT_EQ(tarpon_stage(&header), 0u);
    header.stage = static_cast<std::uint8_t>(header.stage + (1 << TARPON_FLOWS_SHIFT));
  }
  EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_FIELDS);
}

TEST(WireTest, check_header__every_other_value_of_a_field_is_refused) {
  for (int bit = 0; bit < 16; ++bit) {
    tarpon_header header = good();
    header.magic = static_cast<std::uint16_t>(header.magic ^ 1 << bit);
    EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_MAGIC);
  }
  for (int version = 0; version < 256; ++version) {
    if (version == TARPON_WIRE_VERSION) continue;
    tarpon_header header = good();
    header.version = static_cast<std::uint8_t>(version);
    EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_VERSION);
  }
  for (int bit = 0; bit < 32; ++bit) {
    tarpon_header header = good();
    header.job ^= 1u << bit;
    EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_JOB);
  }
  for (int type = 0; type < 256; ++type) {
    if (type >= TARPON_READY && type < TARPON_TYPE_END) continue;
    tarpon_header header = good();
    header.type = static_cast<std::uint8_t>(type);
    EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_TYPE);
  }
  for (int stage = TARPON_MAX_STAGES; stage < 256; ++stage) {
    tarpon_header header = good();
    header.stage = static_cast<std::uint8_t>(stage);
    const bool flows = stage >> TARPON_FLOWS_SHIFT <= 3;
    const bool valid = flows && tarpon_stage(&header) < TARPON_MAX_STAGES;
    EXPECT_EQ(tarpon_check_header(&header, kJob, 8),
              valid ? TARPON_HEADER_OK : TARPON_HEADER_FIELDS);
    header.type = TARPON_CREDIT;
    EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_FIELDS);
  }
  for (const int flags : {0x40, 0x80, 0xc0, 0xff}) {
    tarpon_header header = good();
    header.flags = static_cast<std::uint8_t>(flags);
    EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_FIELDS);
  }
  for (const std::uint32_t bytes : {0u, 7u, 9u, 65535u, 65544u, 0xffffffffu}) {
    const tarpon_header header = good();
    EXPECT_EQ(tarpon_check_header(&header, kJob, bytes), TARPON_HEADER_FIELDS) << bytes;
  }
}

// A reader that sees only a foreign magic must not go by the meaning of the other fields.
TEST(WireTest, check_header__the_first_failing_check_is_the_reason) {
  tarpon_header header{};
  std::memset(&header, 0xff, sizeof header);
  EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_MAGIC);
  header.magic = TARPON_MAGIC;
  EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_VERSION);
  header.version = TARPON_WIRE_VERSION;
  EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_JOB);
  header.job = kJob;
  EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_TYPE);
  header.type = TARPON_ABORT;
  EXPECT_EQ(tarpon_check_header(&header, kJob, 8), TARPON_HEADER_FIELDS);
}

/// Castagnoli, bit by bit.
std::uint32_t crc32c(const std::vector<std::byte>& bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

TEST(WireTest, signature_hash__differs_where_16_bits_in_a_row_do) {
  Signature signature{};
  for (std::size_t i = 0; i < signature.size(); ++i) signature[i] = static_cast<std::uint8_t>(i);
  for (std::size_t at = 0; at + 1 < signature.size(); ++at) {
    for (std::uint32_t change = 1; change < 0x10000; ++change) {
      Signature other = signature;
      other[at] = static_cast<std::uint8_t>(other[at] ^ change);
      other[at + 1] = static_cast<std::uint8_t>(other[at + 1] ^ change >> 8);
      ASSERT_NE(signature_hash(other), signature_hash(signature)) << at << " " << change;
    }
  }
}

TEST(WireTest, packet_check__is_crc32c_with_the_field_zero) {
  const char* const digits = "123456789";
  std::vector<std::byte> known(9);
  std::memcpy(known.data(), digits, known.size());
  ASSERT_EQ(crc32c(known), 0xe3069283u);  // the check value of every CRC catalogue

  for (const std::size_t bytes : {0u, 1u, 7u, 64u, 1408u}) {
    tarpon_header header = good();
    header.length = static_cast<std::uint16_t>(bytes);
    std::vector<std::byte> payload(bytes);
    for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i * 7);
    std::vector<std::byte> whole(sizeof header);
    std::memcpy(whole.data(), &header, sizeof header);
    whole.insert(whole.end(), payload.begin(), payload.end());
    EXPECT_EQ(packet_check(header, payload), crc32c(whole));
    header.check = 0xdeadbeef;
    EXPECT_EQ(packet_check(header, payload), crc32c(whole));
  }
}

}  // namespace
}  // namespace tarpon::wire_test
