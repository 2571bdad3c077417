// The clocks of the peers, as their packets tell them, and what follows for the packet in hand: how
// old it is, and whether it was overtaken.
//
// Each packet carries the time at which it left its sender, and an *echo*: the send time of the
// latest packet that its sender had from the receiver, plus the time since that packet came. So an
// echo tells how long both packets were on their way together, without clocks that agree. Clocks
// may drift apart by 500 ppm, and the error grows with the time that an echo was held: after ten
// idle minutes it would be 300 ms. So a packet has no echo if its sender heard nothing for 2 s.
// Times on the wire are microseconds in 32 bits, and wrap.
//
// Not thread-safe. No clock inside.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "bpf/wire.h"
#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

/// The clock of the wire: wraps.
inline std::uint32_t microseconds(Time now) {
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count());
}

inline constexpr Duration kUnknownAge = Duration::max();

/// How long an echo may be held. It is then at most 1 ms wrong.
inline constexpr Duration kLongestHeld = 2s;

/// Returns when an operation began that began `before` ago. Encoding takes less than 10 s, and a
/// packet that took longer no longer counts.
inline Time begun_before(Duration before, Time now) {
  const Duration known = std::clamp<Duration>(before, Duration::zero(), 10s);
  return now - std::min(known, now.time_since_epoch());
}

class PeerClocks {
 public:
  explicit PeerClocks(std::uint32_t world_size) : clocks_(world_size) {}

  /// Takes the packet in hand. Call it once for each train, since its packets left at one time.
  /// Returns the round trip that the echo tells; nothing without an echo.
  std::optional<Duration> receive(const tarpon_header& header, Time now);
  /// No packet is in hand any more.
  void release_packet() { age_ = {}; }

  /// The longest time that the packet in hand may have been on its way and waited here; kUnknownAge
  /// without an echo, zero without a packet.
  Duration age() const { return age_; }
  /// The latest time at which the operation of the packet in hand may have begun at its sender;
  /// kNever: not known. The READY of an operation says how long before it the operation began
  /// (`before`); DATA that overtakes the READY does not.
  Time begun_at_sender(Duration before, Time now) const {
    return age_ == kUnknownAge ? kNever : begun_before(age_ + before, now);
  }
  /// Whether a packet that the same rank sent later has come before the packet in hand.
  bool overtaken() const { return overtaken_; }

  /// When the latest packet of `peer` came; Time{}: never.
  Time heard(Rank peer) const { return clocks_[peer].heard; }
  /// The tarpon_header::echo_us of a packet to `peer` that leaves now; 0: nothing was heard for
  /// kLongestHeld.
  std::uint32_t echo(Rank peer, Time now) const;

  /// Whether the packet left after its sender had heard what this rank sent at `since_us`. An echo
  /// from the future proves nothing; clocks may drift apart.
  static bool echoes(const tarpon_header& header, std::uint32_t since_us, Time now);

  /// `peer` is asked by HEARTBEAT, in a packet that leaves at `sent_us`.
  void ask(Rank peer, std::uint32_t sent_us);
  /// Whether the packet left its sender after the latest question had come there.
  bool answers(const tarpon_header& header, Time now) const;

 private:
  struct Clock {
    bool heard_any = false;
    bool asked = false;
    std::uint32_t asked_us = 0;
    std::uint32_t packet_number = 0;  // the highest that has come
    std::uint32_t sent_us = 0;        // of the latest packet
    Time heard{};
  };
  std::vector<Clock> clocks_;  // by peer
  Duration age_{};
  bool overtaken_ = false;
};

}  // namespace tarpon
