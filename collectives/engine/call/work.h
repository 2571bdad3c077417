// Work on the buffers of one call, in pieces.
//
// A bucket of 1 GiB takes some 110 ms to encode. The driver of the engine runs such work piece by
// piece, lets go of the engine's lock while a piece runs, and moves packets between two pieces.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "collectives/engine/call/piece.h"
#include "transport/time.h"

namespace tarpon {

/// Runs of equal units, one after another. Not thread-safe; only the piece that take() gave may run
/// beside its other functions.
class Work {
 public:
  explicit Work(std::uint64_t piece_bytes) : piece_bytes_(piece_bytes) {}

  /// Adds `units` units that move `unit_bytes` each: `run(first, count)` does `count` of them, and
  /// works on memory that outlives the work. Work that fits one piece runs in this call, unless
  /// other work waits.
  template <typename Run>
  void add(std::uint64_t units, std::uint64_t unit_bytes, const Run& run) {
    if (units == 0) return;
    if (idle() && units * unit_bytes <= piece_bytes_) {
      run(std::uint64_t{0}, units);
    } else {
      parts_.push_back({run, units, unit_bytes});
    }
  }

  /// Whether nothing is left, and no piece runs.
  bool idle() const { return parts_.empty() && !running_; }

  bool has_piece() const { return !parts_.empty() && !running_; }

  /// The next piece. It runs until ended(). Throws std::bad_alloc, and changes nothing then.
  /// REQUIRES: has_piece().
  Piece take() {
    Part& part = parts_.front();
    const std::uint64_t left = part.units - part.next;
    const std::uint64_t count =
        std::min(left, std::max<std::uint64_t>(1, piece_bytes_ / part.unit_bytes));
    Piece piece{count * part.unit_bytes, part.run, part.next, count};
    running_ = true;
    part.next += count;
    if (count == left) parts_.erase(parts_.begin());
    taken_bytes_ += piece.bytes;
    return piece;
  }
  /// Notes that the piece has run, and took `took`.
  void ended(Duration took) {
    running_ = false;
    took_ += took;
    latest_ = {latest_[1], took};
  }

  /// Bytes that the pieces taken so far move, and the time that they took. Work that ran within
  /// add() does not count.
  std::uint64_t taken_bytes() const { return taken_bytes_; }
  Duration took() const { return took_; }

  /// The time of a piece: the shorter one of the latest two since restart_pace(), because a pause
  /// makes single pieces slow. 0 until there are two.
  Duration pace() const { return std::min(latest_[0], latest_[1]); }
  void restart_pace() { latest_ = {}; }

  /// Drops the work that has not been taken.
  void clear() { parts_.clear(); }

  /// Runs all that is left here, without memory. It does not count as taken. REQUIRES: no piece
  /// runs.
  void run_all() {
    for (const Part& part : parts_) part.run(part.next, part.units - part.next);
    parts_.clear();
  }

 private:
  struct Part {
    std::function<void(std::uint64_t first, std::uint64_t count)> run;
    std::uint64_t units = 0;
    std::uint64_t unit_bytes = 0;
    std::uint64_t next = 0;
  };

  std::uint64_t piece_bytes_;
  std::vector<Part> parts_;
  bool running_ = false;
  std::uint64_t taken_bytes_ = 0;
  Duration took_{};
  std::array<Duration, 2> latest_{};  // 0: none yet
};

}  // namespace tarpon
