// Tells an observer, sparsely, what a rank waits for: first after 2 s, then after three times as
// long in all, and at the end once a minute.
//
// One thread.
#pragma once

#include <algorithm>
#include <string>

#include "collectives/rendezvous_options.h"
#include "transport/clock.h"
#include "transport/time.h"

namespace tarpon::rendezvous {

class WaitingNotice {
 public:
  static constexpr Duration kFirst = 2s;
  static constexpr Duration kLongestPause = 60s;

  /// The wait begins now. `observer` may be null, and outlives this object.
  explicit WaitingNotice(RendezvousObserver* observer)
      : observer_(observer),
        start_(monotonic_now()),
        due_(observer == nullptr ? kNever : start_ + kFirst) {}

  /// When the next line is due.
  Time due() const { return due_; }

  /// Passes the line that `text` returns on, if one is due. `known_to_rank_0`: rank 0 says more.
  template <typename Text>
  void look(Text text, bool known_to_rank_0 = false) {
    const Time now = monotonic_now();
    if (now < due_) return;
    observer_->on_wait(text(), known_to_rank_0);
    due_ = now + std::min<Duration>(2 * (now - start_), kLongestPause);
  }

 private:
  RendezvousObserver* const observer_;
  const Time start_;
  Time due_;
};

}  // namespace tarpon::rendezvous
