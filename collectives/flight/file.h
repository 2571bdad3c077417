// A dump of one rank's flight recorder: a header, then records, oldest first.
//
// Native to x86-64 (little-endian). The header contains its own size and that of a record; a reader
// of another version refuses the file. Records that were being overwritten while the dump was made
// are left out.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "transport/recorder.h"
#include "xdp/base/result.h"

namespace tarpon {

inline constexpr std::array<char, 8> kFlightMagic{'T', 'A', 'R', 'P', 'F', 'L', 'T', '\n'};
/// Changes with the header, the records, and the meaning of their kinds.
inline constexpr std::uint32_t kFlightVersion = 4;
/// The oldest version that is read: version 3 gave `time_namespace` a meaning, and version 4 added
/// RecordKind::send_refused.
inline constexpr std::uint32_t kOldestFlightVersion = 2;

/// Why there is a dump.
enum class DumpReason : std::uint32_t {
  status,   // an operation ended otherwise than complete
  request,  // asked for by SIGUSR1, or over the status socket
  fatal,    // `signal` is ending the process
};

struct FlightHeader {
  std::array<char, 8> magic = kFlightMagic;
  std::uint32_t version = kFlightVersion;
  std::uint32_t header_bytes = 0;
  std::uint32_t record_bytes = sizeof(RecordWords);
  std::uint32_t job = 0;  // public id of the job, alike on all ranks
  std::uint16_t rank = 0;
  std::uint16_t world_size = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t pid = 0;
  DumpReason reason = DumpReason::request;
  std::uint32_t signal = 0;
  std::uint32_t time_namespace = 0;   // its number; 0: not known, as in older recordings
  std::uint64_t written = 0;          // events since the start; the ring holds the last ones
  std::int64_t dumped_monotonic = 0;  // ns, the clock of the records
  std::int64_t dumped_realtime = 0;   // ns since 1970
  std::array<char, 40> boot_id{};     // with time_namespace: of the clock of the records
  std::array<char, 64> host{};
};
static_assert(std::is_trivially_copyable_v<FlightHeader> && sizeof(FlightHeader) == 176);

/// A dump in memory.
struct FlightDump {
  FlightHeader header;
  std::vector<Record> records;  // by number
};

/// Reads a dump from an untrusted source. A pure function of the bytes: everything is checked, host
/// and boot id are made printable, and a dump has at most Recorder::kCapacity records. `name` is
/// for the error, invalid_argument with one line.
Result<FlightDump> parse_flight(std::span<const std::byte> bytes, const std::string& name);

/// "JOB.RANK.flight", the name of a rank's dump in its directory.
std::string flight_file_name(std::uint32_t public_id, Rank rank);

}  // namespace tarpon
