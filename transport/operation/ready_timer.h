// When the next READY of one operation leaves for one peer. READY announces the operation. From its
// first repetition on it is a question: the peer answers it by any packet of the operation.
//
// A value. No clock inside.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/peers/peer_clocks.h"
#include "transport/time.h"

namespace tarpon {

class ReadyTimer {
 public:
  /// When the next READY is due; kNever: none is.
  Time at() const { return at_; }
  bool is_due(Time now) const { return now >= at_; }
  /// How many have left. A question counts as repeated even if none has.
  std::uint32_t repeats() const { return repeats_; }

  /// The next READY leaves at `at`: an announcement, unless one has left before.
  void announce(Time at) { at_ = at; }
  /// The next READY leaves at `at`, as a question.
  void ask(Time at) {
    repeats_ = std::max(1u, repeats_);
    at_ = at;
  }
  /// The same if no READY is due. Returns false when one is.
  bool ask_if_none_is_due(Time at) {
    if (at_ != kNever) return false;
    ask(at);
    return true;
  }
  /// No READY is needed any more.
  void stop() { at_ = kNever; }

  /// A READY leaves now. The next one follows after `delay`, doubled for each that has left, at
  /// most `longest`.
  void sent(Time now, Duration delay, Duration longest) {
    sent_us_ = microseconds(now);
    at_ = now + backed_off(delay, repeats_, longest);
    ++repeats_;
  }
  /// Whether the packet left its sender after the latest READY had come there.
  bool is_answered_by(const tarpon_header& header, Time now) const {
    return repeats_ > 0 && PeerClocks::echoes(header, sent_us_, now);
  }

 private:
  Time at_ = kNever;
  std::uint32_t repeats_ = 0;
  std::uint32_t sent_us_ = 0;  // of the latest one, by the clock of the wire
};

}  // namespace tarpon
