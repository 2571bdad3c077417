#include "collectives/flight/file.h"

#include <fmt/format.h>

#include <cstring>

#include "xdp/base/printable.h"

namespace tarpon {
namespace {

constexpr std::size_t kLongestName = 1000;  // of a file, in a message

/// Beyond it sums of times could overflow. The clock counts from the boot of the machine.
constexpr std::uint64_t kThirtyYears = 946'728'000ull * 1'000'000'000;

/// Ends `text` with a zero, and makes it safe to print.
template <std::size_t kBytes>
void make_printable(std::array<char, kBytes>& text) {
  text.back() = '\0';
  const std::string line = printable(text.data(), kBytes);
  line.copy(text.data(), line.size());
}

}  // namespace

Result<FlightDump> parse_flight(std::span<const std::byte> bytes, const std::string& name) {
  const auto refuse = [&name](const std::string& why) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{}: {}", printable(name, kLongestName), why));
  };
  FlightDump dump;
  FlightHeader& header = dump.header;
  if (bytes.size() < sizeof header) return refuse("too short for a flight recording");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kFlightMagic) return refuse("not a flight recording");
  if (header.version < kOldestFlightVersion || header.version > kFlightVersion ||
      header.header_bytes != sizeof header || header.record_bytes != sizeof(RecordWords)) {
    return refuse(fmt::format(
        "flight recording of version {}; this version of Tarpon reads {} to {}: use the one that "
        "wrote it",
        header.version, kOldestFlightVersion, kFlightVersion));
  }
  if (header.world_size == 0 || header.world_size > 64 || header.rank >= header.world_size) {
    return refuse(fmt::format("rank {} of {} ranks: damaged", header.rank, header.world_size));
  }
  if (static_cast<std::uint64_t>(header.dumped_monotonic) > kThirtyYears) {
    return refuse("its time is impossible: damaged");
  }
  make_printable(header.boot_id);
  make_printable(header.host);
  const std::span<const std::byte> rest = bytes.subspan(sizeof header);
  if (rest.size() / sizeof(RecordWords) > Recorder::kCapacity) return refuse("too long");
  // A dump that was cut short is read as far as it goes.
  for (std::size_t at = 0; at + sizeof(RecordWords) <= rest.size(); at += sizeof(RecordWords)) {
    RecordWords words;
    std::memcpy(words.data(), rest.data() + at, sizeof words);
    const auto kind = static_cast<std::uint8_t>(words[2]);
    if (kind == 0 || kind >= static_cast<std::uint8_t>(RecordKind::count)) {
      return refuse(fmt::format("record {} has an unknown kind: damaged", at / sizeof words));
    }
    if (words[0] > kThirtyYears) {
      return refuse(fmt::format("the time of record {} is impossible: damaged", at / sizeof words));
    }
    dump.records.push_back(unpack(words, header.written));
  }
  return dump;
}

std::string flight_file_name(std::uint32_t public_id, Rank rank) {
  return fmt::format("{:08x}.{}.flight", public_id, rank);
}

}  // namespace tarpon
