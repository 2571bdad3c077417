// PROTOCOL.md against the code: its tables, and the packets that it walks through byte by byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bpf/wire.h"
#include "transport/agreement_packet.h"
#include "transport/counters.h"
#include "transport/integrity.h"
#include "transport/ports/sealed_port.h"
#include "transport/simulated/simulated_port.h"
#include "transport/wire/signature_hash.h"

namespace tarpon::protocol_page_test {
namespace {

struct Field {
  std::string_view name;
  std::size_t offset;
  std::size_t bytes;
};

#define FIELD(name)                                                   \
  Field {                                                             \
#name, offsetof(tarpon_header, name), sizeof(tarpon_header::name) \
  }
constexpr std::array kFields = {
    FIELD(magic),        FIELD(version),       FIELD(type),         FIELD(job),
    FIELD(sender),       FIELD(communicator),  FIELD(tag),          FIELD(operation),
    FIELD(slot),         FIELD(stage),         FIELD(flags),        FIELD(length),
    FIELD(signature),    FIELD(epoch),         FIELD(contributors), FIELD(closed_below),
    FIELD(stage_time),   FIELD(packet_number), FIELD(sent_us),      FIELD(echo_us),
    FIELD(incast_codec), FIELD(incarnation),   FIELD(stride),       FIELD(check),
};
#undef FIELD

#define FIELD(name)                                                         \
  Field {                                                                   \
#name, offsetof(AgreementPayload, name), sizeof(AgreementPayload::name) \
  }
constexpr std::array kAgreementFields = {
    FIELD(kind),       FIELD(nonfinite), FIELD(verdict),     FIELD(reserved),
    FIELD(decided_by), FIELD(step),      FIELD(report_lost), FIELD(verdict_lost),
    FIELD(reporters),  FIELD(rejoin),    FIELD(late),        FIELD(digest),
    FIELD(differing),  FIELD(gone),      FIELD(patience_ms), FIELD(text_bytes),
};
#undef FIELD

constexpr std::uint32_t kJob = 0x2a17b3c5;

std::vector<std::string> page() {
  std::ifstream file(TARPON_PROTOCOL_PAGE);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

/// The cells of a table's row; empty for any other line.
std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> result;
  if (!line.starts_with("| ")) return result;
  for (std::size_t at = 1, end; (end = line.find('|', at)) != std::string::npos; at = end + 1) {
    result.emplace_back(trimmed(std::string_view(line).substr(at, end - at)));
  }
  return result;
}

/// The rows of the table below the heading `heading`, without its first two lines.
std::vector<std::vector<std::string>> table(std::string_view heading) {
  std::vector<std::vector<std::string>> rows;
  bool below = false;
  for (const std::string& line : page()) {
    if (line.starts_with('#')) below = line.substr(line.find(' ') + 1) == heading;
    if (below && line.starts_with("| ")) rows.push_back(cells(line));
  }
  if (!rows.empty()) rows.erase(rows.begin());
  return rows;
}

std::string quoted(std::string_view name) {
  return '`' + std::string(name) + '`';
}

struct Packet {
  struct Line {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::string field;
  };
  std::vector<Line> lines;
  std::vector<std::byte> bytes;

  tarpon_header header() const {
    tarpon_header result{};
    if (bytes.size() >= sizeof result) std::memcpy(&result, bytes.data(), sizeof result);
    return result;
  }
  std::span<const std::byte> payload() const {
    return std::span(bytes).subspan(std::min(bytes.size(), sizeof(tarpon_header)));
  }
  template <typename T>
  T payload_as(std::size_t offset) const {
    T result{};
    const std::span<const std::byte> from = payload();
    if (offset + sizeof result > from.size()) {
      ADD_FAILURE() << "the payload ends before " << offset + sizeof result;
      return result;
    }
    std::memcpy(&result, from.data() + offset, sizeof result);
    return result;
  }
};

template <typename Number>
Number number(std::string_view text, int base) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  EXPECT_TRUE(error == std::errc{} && end == text.data() + text.size()) << "not a number: " << text;
  return value;
}

/// Puts "OFFSET: HEX | FIELD: words" into `packet`, in place of the line that is there or as its
/// next one.
void read_line(const std::string& text, Packet& packet) {
  const std::size_t colon = text.find(':');
  const std::size_t bar = text.find('|');
  ASSERT_TRUE(colon < bar && bar != std::string::npos) << text;
  const std::string_view view(text);
  Packet::Line line;
  line.offset = number<std::size_t>(trimmed(view.substr(0, colon)), 10);
  const std::string_view digits = trimmed(view.substr(colon + 1, bar - colon - 1));
  ASSERT_EQ(digits.size() % 2, 0u) << text;
  line.bytes = digits.size() / 2;
  line.field = trimmed(view.substr(bar + 1, view.find(':', bar) - bar - 1));

  if (packet.bytes.size() < line.offset + line.bytes) packet.bytes.resize(line.offset + line.bytes);
  for (std::size_t i = 0; i < line.bytes; ++i) {
    packet.bytes[line.offset + i] = std::byte{number<std::uint8_t>(digits.substr(2 * i, 2), 16)};
  }
  const auto there = std::ranges::find(packet.lines, line.offset, &Packet::Line::offset);
  if (there == packet.lines.end()) {
    packet.lines.push_back(line);
  } else {
    *there = line;
  }
}

/// The lines between "```packet NAME" and "```", above the header of "ready": the page shows of the
/// later packets only what differs.
Packet packet(const std::string& name) {
  Packet result;
  if (name != "ready") {
    result = packet("ready");
    result.bytes.resize(sizeof(tarpon_header));
    std::erase_if(result.lines,
                  [](const auto& line) { return line.offset >= sizeof(tarpon_header); });
  }
  bool inside = false;
  for (const std::string& line : page()) {
    if (inside && line == "```") break;
    if (inside) read_line(line, result);
    if (line == "```packet " + name) inside = true;
  }
  EXPECT_GE(result.bytes.size(), sizeof(tarpon_header)) << "packet " << name << " of the page";
  return result;
}

std::uint8_t flags(int others) {
  return static_cast<std::uint8_t>(TARPON_INTEGRITY_CRC32C << TARPON_INTEGRITY_SHIFT | others);
}

/// What all three packets have in common.
void check_common(const Packet& packet) {
  for (std::size_t i = 0; i < kFields.size() && i < packet.lines.size(); ++i) {
    EXPECT_EQ(packet.lines[i].field, kFields[i].name);
    EXPECT_EQ(packet.lines[i].offset, kFields[i].offset) << kFields[i].name;
    EXPECT_EQ(packet.lines[i].bytes, kFields[i].bytes) << kFields[i].name;
  }
  std::size_t offset = 0;
  for (const Packet::Line& line : packet.lines) {
    EXPECT_EQ(line.offset, offset) << line.field;
    offset += line.bytes;
  }
  const tarpon_header header = packet.header();
  EXPECT_EQ(tarpon_check_header(&header, kJob, static_cast<__u32>(packet.payload().size())),
            TARPON_HEADER_OK);
  EXPECT_EQ(header.check, packet_check(header, packet.payload()));
  EXPECT_EQ(header.communicator, 0);
  EXPECT_EQ(header.tag, 7u);
  EXPECT_EQ(header.operation, 5u);
  EXPECT_EQ(header.stage, 0);
  EXPECT_EQ(header.closed_below, 5);
  EXPECT_EQ(header.epoch, 0);
  EXPECT_EQ(header.stage_time, 0);
  EXPECT_EQ(header.echo_us, 0u);
  EXPECT_EQ(header.incast_codec, 0);
  EXPECT_EQ(header.incarnation, 0);
  EXPECT_EQ(header.stride, 0);
}

void expect_fields(std::string_view heading, std::span<const Field> fields) {
  const auto rows = table(heading);
  ASSERT_EQ(rows.size(), fields.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i].size(), 4u);
    EXPECT_EQ(rows[i][0], std::to_string(fields[i].offset));
    EXPECT_EQ(rows[i][1], std::to_string(fields[i].bytes));
    EXPECT_EQ(rows[i][2], quoted(fields[i].name));
  }
}

TEST(ProtocolPageTest, the_header_table_is_the_struct) {
  expect_fields("Header", kFields);
}

TEST(ProtocolPageTest, the_table_of_agreement_is_the_struct) {
  expect_fields("Payload of AGREEMENT", kAgreementFields);
}

TEST(ProtocolPageTest, every_packet_type_has_its_number) {
  constexpr std::array<std::pair<tarpon_type, std::string_view>, TARPON_TYPE_END - TARPON_READY>
      kTypes = {{{TARPON_READY, "READY"},
                 {TARPON_DATA, "DATA"},
                 {TARPON_CREDIT, "CREDIT"},
                 {TARPON_REPAIR, "REPAIR"},
                 {TARPON_CLOSED, "CLOSED"},
                 {TARPON_HEARTBEAT, "HEARTBEAT"},
                 {TARPON_ABORT, "ABORT"},
                 {TARPON_PROBE, "PROBE"},
                 {TARPON_PROBE_REPLY, "PROBE_REPLY"},
                 {TARPON_AGREEMENT, "AGREEMENT"}}};
  const auto rows = table("Packet types");
  ASSERT_EQ(rows.size(), kTypes.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].at(0), std::to_string(kTypes[i].first));
    EXPECT_EQ(rows[i].at(1), kTypes[i].second);
  }
}

TEST(ProtocolPageTest, every_reason_to_drop_a_packet_is_told_once) {
  const auto rows = table("What is dropped, and its counter");
  constexpr auto kReasons = static_cast<std::size_t>(DropReason::count);
  EXPECT_EQ(rows.size(), kReasons);
  for (std::size_t reason = 0; reason < kReasons; ++reason) {
    const std::string name = quoted(drop_reason_name(static_cast<DropReason>(reason)));
    EXPECT_EQ(
        std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return row.at(0) == name; }),
        1)
        << name;
  }
}

TEST(ProtocolPageTest, the_ready_packet) {
  const Packet example = packet("ready");
  check_common(example);
  const tarpon_header header = example.header();
  EXPECT_EQ(header.type, TARPON_READY);
  EXPECT_EQ(header.sender, 0);
  EXPECT_EQ(header.slot, 0u);
  EXPECT_EQ(header.flags, flags(0));
  EXPECT_EQ(header.contributors, 0u);
  EXPECT_EQ(header.packet_number, 1022u);
  EXPECT_EQ(header.sent_us / 100'000, 1717u);
  ASSERT_EQ(example.payload().size(), sizeof(tarpon_ready));
  const auto ready = example.payload_as<tarpon_ready>(0);
  EXPECT_EQ(ready.grant[0], 4u);
  EXPECT_EQ(ready.grant[1], 4u);
  EXPECT_EQ(ready.grant[2], 0u);
  EXPECT_EQ(ready.grant[3], 0u);
  EXPECT_EQ(ready.age_us, 0u);
  for (const std::uint32_t word : ready.terms) EXPECT_EQ(word, 0u);
}

TEST(ProtocolPageTest, every_packet_has_the_hash_of_the_signature_in_ready) {
  const auto signature = packet("ready").payload_as<Signature>(0);
  for (const char* name : {"ready", "data", "repair"}) {
    EXPECT_EQ(packet(name).header().signature, signature_hash(signature)) << name;
  }
}

TEST(ProtocolPageTest, the_data_packet) {
  const Packet example = packet("data");
  check_common(example);
  const tarpon_header header = example.header();
  EXPECT_EQ(header.type, TARPON_DATA);
  EXPECT_EQ(header.sender, 2);
  EXPECT_EQ(header.slot, 3u);
  EXPECT_EQ(header.flags, flags(TARPON_FLAG_TAIL));
  EXPECT_EQ(header.contributors, 1u << 2);
  EXPECT_EQ(header.packet_number, 1041u);
  EXPECT_EQ(header.sent_us / 100'000, 20834u);
  ASSERT_EQ(example.payload().size(), 4 * sizeof(float));
  EXPECT_EQ((example.payload_as<std::array<float, 4>>(0)),
            (std::array<float, 4>{1.0f, -2.0f, 0.5f, 3.0f}));
}

TEST(ProtocolPageTest, the_repair_packet) {
  const Packet example = packet("repair");
  check_common(example);
  const tarpon_header header = example.header();
  EXPECT_EQ(header.type, TARPON_REPAIR);
  EXPECT_EQ(header.sender, 0);
  EXPECT_EQ(header.slot, 4u);
  EXPECT_EQ(header.flags, flags(0));
  EXPECT_EQ(header.contributors, 0u);
  EXPECT_EQ(header.packet_number, 1023u);
  EXPECT_EQ(header.sent_us / 100'000, 1717u);
  ASSERT_EQ(example.payload().size(), 2 * sizeof(tarpon_range));
  const auto first = example.payload_as<tarpon_range>(0);
  const auto second = example.payload_as<tarpon_range>(sizeof(tarpon_range));
  EXPECT_EQ(first.first, 0u);
  EXPECT_EQ(first.count, 1u);
  EXPECT_EQ(second.first, 2u);
  EXPECT_EQ(second.count, 1u);
}

TEST(ProtocolPageTest, the_keyed_packet__is_opened_once_by_its_receiver_alone) {
  const Packet example = packet("keyed");
  JobKey key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  SimulatedNetwork network({.ranks = 3});
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    SealedPort port(network.make_port(rank), {.key = key, .rank = rank, .ranks = 3});
    for (int time = 0; time < 2; ++time) network.inject(2, rank, example.bytes);
    network.advance_to(network.now() + 1ms);
    const auto opened = port.receive(network.now());
    ASSERT_EQ(opened.size(), rank == 0 ? 1u : 0u);
    if (rank != 0) continue;
    EXPECT_EQ(opened[0].length, example.bytes.size() - TARPON_TAG_BYTES);
    EXPECT_EQ(port.statistics().rx_replayed, 1u);
    const Packet plain = packet("data");
    EXPECT_TRUE(std::equal(plain.payload().begin(), plain.payload().end(),
                           opened[0].data + TARPON_HEADER_BYTES));
  }
}

}  // namespace
}  // namespace tarpon::protocol_page_test
