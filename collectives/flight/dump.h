// Writes dumps. Safe in a signal handler: no allocation, no lock, system calls only.
#pragma once

#include <array>
#include <cstddef>

#include "collectives/flight/file.h"
#include "transport/recorder.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {

/// Where a rank's dump goes; prepared ahead, so that a signal handler need not build names.
struct DumpTarget {
  const Recorder* recorder = nullptr;
  FlightHeader header;               // without what at_this_moment() sets
  FileDescriptor directory;          // opened once, so that it cannot be exchanged for another
  std::array<char, 64> name{};       // of the dump, in the directory
  std::array<char, 64> by_thread{};  // written first, then renamed
  std::array<char, 64> by_signal{};  // the same by a handler, which may interrupt the thread
};

/// Returns the header of `target` as of now.
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

/// Replaces the file `target.name` as a whole; follows no link. `signal`: 0 outside of handlers.
/// False on failure: then the earlier file stays.
bool write_dump(const DumpTarget& target, DumpReason reason, int signal);

}  // namespace tarpon
