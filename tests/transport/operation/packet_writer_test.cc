// Headers of the packets of this rank.
#include "transport/operation/packet_writer.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "tests/support/steady_inflow.h"
#include "transport/integrity.h"

namespace tarpon::packet_writer_test {
namespace {

class PacketWriterTest : public testing::Test {
 protected:
  PacketWriterTest() {
    frame_.header = header_.data();
    frame_.room = room_.data();
    frame_.payload = room_.data();
    frame_.length = 5;
  }

  tarpon_header written(const RunFields& fields = {}) {
    writer_.write(writer_.header(Time(2s), 1, TARPON_DATA, 7, 3, 1), fields, {&frame_, 1});
    tarpon_header header;
    std::memcpy(&header, header_.data(), sizeof header);
    return header;
  }

  EndpointOptions options_{
      .rank = 0, .world_size = 2, .job = 9, .integrity = TARPON_INTEGRITY_CRC32C};
  PeerClocks clocks_{2};
  TagHistory tags_{{.world_size = 2, .retain_bytes = 0, .remembered_tags = 16}};
  testing_support::SteadyInflow inflow_{1 << 20};
  EndpointCounters counters_;
  PacketWriter writer_{options_, clocks_, tags_, inflow_, counters_};
  std::array<std::byte, TARPON_HEADER_BYTES> header_{};
  std::array<std::byte, 100> room_{};
  TxPacket frame_;
};

TEST_F(PacketWriterTest, write__a_header_that_its_receiver_accepts) {
  const tarpon_header header = written({.slot = 4, .contributors = 0b11});
  EXPECT_EQ(tarpon_check_header(&header, 9, 5), TARPON_HEADER_OK);
  EXPECT_EQ(header.sender, 0);
  EXPECT_EQ(header.tag, 7u);
  EXPECT_EQ(header.operation, 3u);
  EXPECT_EQ(header.slot, 4u);
  EXPECT_EQ(header.length, 5);
  EXPECT_EQ(header.contributors, 0b11u);
  EXPECT_EQ(header.sent_us, 2'000'000u);
  EXPECT_EQ(header.check, packet_check(header, {room_.data(), 5}));
}

TEST_F(PacketWriterTest, write__numbers_rise_and_packets_are_counted) {
  EXPECT_EQ(written().packet_number, 0u);
  EXPECT_EQ(written().packet_number, 1u);
  EXPECT_EQ(counters_.packets_out, 2u);
}

TEST_F(PacketWriterTest, write__a_run_with_slots_that_follow_one_another) {
  std::array<std::array<std::byte, TARPON_HEADER_BYTES>, 3> headers{};
  std::array<TxPacket, 3> frames;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    frames[i] = frame_;
    frames[i].header = headers[i].data();
    frames[i].length = i == 2 ? 3 : 5;
  }
  const RunFields fields{.slot = 4, .flags = TARPON_FLAG_TAIL, .contributors = 0b11};
  writer_.write(writer_.header(Time(2s), 1, TARPON_DATA, 7, 3, 1), fields, frames);
  for (std::uint32_t i = 0; i < frames.size(); ++i) {
    tarpon_header header;
    std::memcpy(&header, headers[i].data(), sizeof header);
    EXPECT_EQ(header.slot, 4 + i);
    EXPECT_EQ(header.packet_number, i);
    EXPECT_EQ(header.length, frames[i].length);
    EXPECT_EQ(header.flags, TARPON_FLAG_TAIL);
    EXPECT_EQ(header.contributors, 0b11u);
    EXPECT_EQ(header.check, packet_check(header, {room_.data(), frames[i].length}));
  }
}

TEST_F(PacketWriterTest, write__without_a_check_sum_where_the_kernel_has_one) {
  options_.integrity = TARPON_INTEGRITY_UDP;
  EXPECT_EQ(written().check, 0u);
}

TEST_F(PacketWriterTest, header__echoes_the_peer_and_tells_what_is_closed) {
  tarpon_header heard{};
  heard.sender = 1;
  heard.sent_us = 500;
  clocks_.receive(heard, Time(2s) - 30us);
  tags_.activate(7).next_number = 12;
  const tarpon_header header = writer_.header(Time(2s), 1, TARPON_READY, 7, 3, 0);
  EXPECT_EQ(header.echo_us, 530u);
  EXPECT_EQ(header.closed_below, 12);
}

TEST_F(PacketWriterTest, mark_epoch__number_codec_and_stride) {
  tarpon_header header{};
  PacketWriter::mark_epoch({.number = 6, .form = 1, .form_details = 3}, header);
  EXPECT_EQ(header.epoch, 6);
  EXPECT_EQ(header.incast_codec >> TARPON_CODEC_SHIFT, 1);
  EXPECT_EQ(header.stride, 3);
}

}  // namespace
}  // namespace tarpon::packet_writer_test
