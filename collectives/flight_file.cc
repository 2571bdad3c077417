#include "collectives/flight_file.h"

#include <fmt/format.h>

#include <cstring>

namespace tarpon {
namespace {

/// Beyond it sums of times could overflow. The clock counts from the boot of the machine.
constexpr std::uint64_t kThirtyYears = 946'728'000ull * 1'000'000'000;

}  // namespace

Result<FlightDump> parse_flight(std::span<const std::byte> bytes, const std::string& name) {
  const auto refuse = [&name](const std::string& why) {
    return fail(Error::Code::invalid_argument, fmt::format("{}: {}", name, why));
  };
  FlightDump dump;
  FlightHeader& header = dump.header;
  if (bytes.size() < sizeof header) return refuse("too short for a flight recording");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kFlightMagic) return refuse("no flight recording");
  if (header.version != kFlightVersion || header.header_bytes != sizeof header ||
      header.record_bytes != sizeof(RecordWords)) {
    return refuse(
        fmt::format("flight recording of version {}, this tarpon reads {}: use the one "
                    "that wrote it",
                    header.version, kFlightVersion));
  }
  if (header.world_size == 0 || header.world_size > 64 || header.rank >= header.world_size) {
    return refuse(fmt::format("rank {} of {} ranks: damaged", header.rank, header.world_size));
  }
  if (static_cast<std::uint64_t>(header.dumped_monotonic) > kThirtyYears) {
    return refuse("made at an impossible time: damaged");
  }
  header.boot_id.back() = '\0';
  header.host.back() = '\0';
  const std::span<const std::byte> rest = bytes.subspan(sizeof header);
  if (rest.size() / sizeof(RecordWords) > Recorder::kCapacity) return refuse("too long");
  // A dump that was cut short is worth what it holds.
  for (std::size_t at = 0; at + sizeof(RecordWords) <= rest.size(); at += sizeof(RecordWords)) {
    RecordWords words;
    std::memcpy(words.data(), rest.data() + at, sizeof words);
    const auto kind = static_cast<std::uint8_t>(words[2]);
    if (kind == 0 || kind >= static_cast<std::uint8_t>(RecordKind::count)) {
      return refuse(fmt::format("record {} has no known kind: damaged", at / sizeof words));
    }
    if (words[0] > kThirtyYears) {
      return refuse(fmt::format("record {} is of an impossible time: damaged", at / sizeof words));
    }
    dump.records.push_back(unpack(words, header.written));
  }
  return dump;
}

std::string flight_file_name(std::uint32_t job, Rank rank) {
  return fmt::format("{:08x}.{}.flight", job, rank);
}

}  // namespace tarpon
