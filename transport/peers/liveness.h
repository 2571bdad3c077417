// Which peers are silent on the data path: they were asked for a sign of life, and nothing came.
//
// Only peers that open operations lack are watched. A peer that was heard less than a third of
// `silent_after` ago is not asked. From then on it is asked every sixth of it (two of three
// questions or answers may be lost), and after `silent_after` it counts as silent until it is heard
// again. Time in which this rank did not run says nothing about its peers.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

class Liveness {
 public:
  struct Findings {
    std::uint64_t ask = 0;     // peers to ask for a sign of life: bit r: rank r
    std::uint64_t silent = 0;  // peers that did not answer
  };

  Liveness(std::uint32_t world_size, Duration silent_after)
      : silent_after_(silent_after), peers_(world_size) {}

  /// `lacked` (bit r: rank r): peers that open operations lack. `heard`: by rank, when the latest
  /// packet came. Call it when next() has passed.
  Findings check(Time now, std::uint64_t lacked, const std::vector<Time>& heard);

  /// When check() has something to do while an operation is open.
  Time next() const { return next_; }
  /// An operation was opened.
  void watch(Time now) {
    if (next_ != kNever) return;
    last_check_ = now;
    next_ = now + ask_every();
  }

 private:
  struct Peer {
    Time lacked_since = kNever;
    std::uint32_t asked = 0;  // since it was heard
  };
  Duration ask_every() const { return silent_after_ / 6; }

  const Duration silent_after_;
  std::vector<Peer> peers_;
  Time last_check_{};
  Time next_ = kNever;
};

}  // namespace tarpon
