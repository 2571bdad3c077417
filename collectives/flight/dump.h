// Writes dumps. Safe in a signal handler: no allocation, no lock, system calls only.
#pragma once

#include <array>
#include <cstddef>

#include "collectives/flight/file.h"
#include "transport/recorder.h"
#include "xdp/file_descriptor.h"

namespace tarpon {

/// Where a rank's dump goes; prepared ahead, so that a signal handler need not build names.
struct DumpTarget {
  const Recorder* recorder = nullptr;
  FlightHeader header;               // all but what the moment says
  FileDescriptor directory;          // opened once: nobody can put another one in its place
  std::array<char, 64> name{};       // in it
  std::array<char, 64> by_thread{};  // written first, then renamed
  std::array<char, 64> by_signal{};  // a handler may interrupt the thread
};

/// `header` as of now.
FlightHeader at_this_moment(const DumpTarget& target, DumpReason reason, int signal);

/// Gives header and records to `put(data, bytes)` piece by piece; ends when that returns false.
template <typename Put>
bool emit_dump(const Recorder& recorder, const FlightHeader& header, Put put) {
  if (!put(&header, sizeof header)) return false;
  std::array<RecordWords, 64> piece;
  std::size_t used = 0;
  const std::uint64_t first =
      header.written > Recorder::kCapacity ? header.written - Recorder::kCapacity : 0;
  for (std::uint64_t number = first; number < header.written; ++number) {
    if (!recorder.read(number, piece[used])) continue;
    if (++used < piece.size()) continue;
    if (!put(piece.data(), sizeof piece)) return false;
    used = 0;
  }
  return used == 0 || put(piece.data(), used * sizeof(RecordWords));
}

/// Replaces the file `target.name` whole; follows no link. `signal`: 0 outside of handlers. False
/// when that failed: what was there before stays.
bool write_dump(const DumpTarget& target, DumpReason reason, int signal);

}  // namespace tarpon
