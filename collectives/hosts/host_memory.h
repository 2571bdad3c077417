// The memory that the ranks of a host share. It has lines: on a line calls do their work in one
// order. A line has a ring of places for data, and a board for each rank, which says what the rank
// calls and how far it is.
//
// Readers take positions, numbers of calls and data from this memory, and nothing that becomes an
// address. So a process that fills it with garbage spoils results, and nothing outside the memory.
// The memory has no locks: a rank that stops holds nothing that others need.
//
//   sleep words   one for each rank
//   bindings      how many common lines have been used, then one for each of them
//   boards        of line 0: of each rank; of line 1: ...
//   places        of line 0: place 0: the input of each rank, the result; place 1: ...
//
// The object is a view: it owns nothing. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "bpf/wire.h"
#include "collectives/hosts/host_lines.h"

namespace tarpon::hosts {

/// How far a rank is with a part of the work of a line: in call `number` it has done `steps` steps.
/// A rank that is done with a call is at step 0 of the next one.
using Position = std::uint64_t;

constexpr Position position(std::uint32_t number, std::uint32_t steps) {
  return Position{number} << 32 | steps;
}

/// Numbers wrap: the calls of two ranks are never 2^31 apart.
constexpr bool has_reached(Position at, Position wanted) {
  return static_cast<std::int64_t>(at - wanted) >= 0;
}

/// The parts of the work of a call.
enum class Part : std::uint8_t {
  copy_in,   // this rank's input into its place
  add_up,    // the slice that this rank owns, over the ranks of the host
  spread,    // the result of that slice, over all hosts, into the place; not with one host
  copy_out,  // the result, or what this rank takes, into its output
};
inline constexpr std::size_t kParts = 4;

/// What a rank says about one call.
struct alignas(64) CallBoard {
  /// The call's number << 32 | CallState. Written last.
  std::atomic<std::uint64_t> state;
  std::array<std::atomic<std::uint64_t>, TARPON_SIGNATURE_BYTES / 8> signature;
  // Bounded: the ranks that have NaN or infinity in their input, as far as the rank knows, and
  // whether one has whose name it does not know.
  std::atomic<std::uint64_t> marked;  // bit r: rank r of the communicator
  std::atomic<std::uint32_t> heard;
  // Once given up:
  std::atomic<std::uint32_t> reason;  // tarpon_abort_reason
  std::atomic<std::uint64_t> blamed;  // bit r: rank r of the communicator
};

enum class CallState : std::uint32_t {
  none = 0,  // memory that nobody has written
  begun = 1,
  given_up = 2,  // the rank ended it without a result, and tells why
  over = 3,      // it ended without a result, for a reason that every rank learns by itself
};

/// What a rank says about a line.
struct alignas(64) Board {
  /// A rank begins call n + kCalls only when all ranks are through with the places of call n, or
  /// have given up calls after it: at most 8 run at once. A bounded call does not wait for a rank
  /// that is left out: this one finds that the others have overtaken it.
  static constexpr std::uint32_t kCalls = 32;

  /// A bounded call does not wait for ever for a rank that stands still: local rank r is out of the
  /// calls before position left_out[r], as this rank says. It says so before it writes over what
  /// that rank may still read.
  std::array<std::atomic<Position>, 64> left_out;
  std::array<std::atomic<Position>, kParts> done;  // by Part
  std::array<CallBoard, kCalls> calls;             // by number % kCalls
};

/// Which call has a common line. The lowest local rank writes it.
struct alignas(16) Binding {
  std::atomic<std::uint64_t> call;   // tag << 32 | number
  std::atomic<std::uint32_t> count;  // of calls that have got the line so far. Written last
};

/// Whether a rank sleeps, and its wish then (collectives/engine/hosts/host_calls.h).
struct alignas(64) SleepWord {
  std::atomic<std::uint64_t> word;
};

struct HostShape {
  std::uint32_t ranks = 1;
  std::uint32_t places = 4;                // of a line
  std::uint32_t place_bytes = 512 * 1024;  // of the input of a rank, a multiple of 4096
  /// An owner sends at least so many bytes to another host. Below that, packets cost more than the
  /// owners gain by working side by side.
  std::uint32_t least_shard = 16 * 1024;
};

class HostMemory {
 public:
  static std::uint64_t bytes(const HostShape& shape);
  /// Of the places of a line.
  static std::uint64_t bytes_of_line(const HostShape& shape);

  /// `base`: bytes(shape) bytes, aligned to a page, zero when the first rank looks at them, which
  /// outlive this object.
  HostMemory(std::byte* base, const HostShape& shape) : base_(base), shape_(shape) {}

  const HostShape& shape() const { return shape_; }

  std::atomic<std::uint64_t>& sleep_word(std::uint32_t rank) const;
  /// How many common lines have been used: the first ones. The lowest local rank writes it.
  std::atomic<std::uint32_t>& used_lines() const;
  /// Of common line `index`, counted from 0.
  Binding& binding(std::uint32_t index) const;
  Board& board(std::uint32_t line, std::uint32_t rank) const;
  /// The ranks whose board of `line` has not reached `position` with `part`. Bit r: local rank r.
  std::uint64_t lacking(std::uint32_t line, Part part, Position position) const;
  /// The input of `rank` at a place, and the result there: place_bytes each.
  std::byte* input(std::uint32_t line, std::uint32_t place, std::uint32_t rank) const;
  std::byte* result(std::uint32_t line, std::uint32_t place) const;

 private:
  std::byte* base_;
  HostShape shape_;
};

}  // namespace tarpon::hosts
