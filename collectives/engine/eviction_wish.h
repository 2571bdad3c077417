// Ranks that hold bounded calls back: there is no room to retain the shards of these calls for
// them.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstdint>
#include <utility>

#include "collectives/engine/call/running_call.h"
#include "transport/time.h"

namespace tarpon {

class EvictionWish {
 public:
  /// Takes a call that has ended. The ranks that hold it back are to be evicted if bounded calls
  /// have found no room for at least its deadline.
  void note(const RunningCall& ended, Time now) {
    if (ended.call().report.mode != Mode::bounded) return;
    const std::uint64_t ranks = ended.held_back_by();
    if (ranks == 0) {
      since_ = kNever;
    } else if (since_ == kNever) {
      since_ = now;
    } else if (now - since_ >= ended.call().arguments.deadline) {
      ranks_ |= ranks;
    }
  }

  /// Returns and forgets the ranks. Bit r: rank r.
  std::uint64_t take() { return std::exchange(ranks_, 0); }

 private:
  std::uint64_t ranks_ = 0;
  Time since_ = kNever;  // since when calls have found no room
};

}  // namespace tarpon
