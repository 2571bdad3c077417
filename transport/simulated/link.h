// One modelled link: a policer, a queue before a serialiser, a wire with delay and loss.
//
// A packet's fate follows from when it enters and from what entered before: no events inside. What
// depends on time is kept in whole picoseconds, and what is random comes from transport/random.h,
// so that the same packets meet the same fates with every compiler.
#pragma once

#include <cstdint>

#include "transport/random.h"
#include "transport/simulated/pareto.h"
#include "transport/time.h"

namespace tarpon {

/// The default is a perfect link: everything passes at once. Numbers are not negative, chances are
/// in [0, 1].
struct LinkOptions {
  double bits_per_second = 0;     // 0: no serialisation, no queue
  std::uint64_t queue_bytes = 0;  // room before the wire, what is half sent included; a packet that
                                  // has to wait and does not fit is dropped; 0: unlimited
  std::uint64_t burst_bytes = 0;  // that pass at once after idleness, as with a token bucket (tbf)
  double policer_bits_per_second = 0;     // drops at once what exceeds a token bucket; 0: none
  std::uint64_t policer_burst_bytes = 0;  // depth of that bucket, full at the start
  Duration delay{};                       // propagation, of every packet
  double tail = 1;                        // P99 / P50 of an extra delay, Pareto; 1: it is constant
  Duration tail_median{};                 // P50 of that extra delay, per packet; 0: none
  double loss = 0;                        // chance of each packet, behind the queue
  double burst_loss_enter = 0;            // Gilbert-Elliott: chance per packet to enter the state
  double burst_loss_leave = 1;            // in which all are lost; chance per packet to leave it
  bool operator==(const LinkOptions&) const = default;
};

enum class LinkFate : std::uint8_t {
  delivered,
  queue,    // dropped: no room before the wire
  policer,  // dropped: beyond the token bucket
  loss,     // lost on the wire
};

/// What becomes of a packet, and when: it arrives, or is dropped, at `time`.
struct Passage {
  LinkFate fate = LinkFate::delivered;
  Time time;
};

/// Single-threaded. Copyable; a copy goes on as the original would.
class Link {
 public:
  Link(const LinkOptions& options, std::uint64_t seed);

  /// REQUIRES: `now` is not before the last call's, and within 100 days of the origin.
  Passage enter(Time now, std::uint32_t wire_bytes);

  /// Whether `wire_bytes` more may wait.
  bool has_room(Time now, std::uint32_t wire_bytes) const;

 private:
  /// A token bucket in virtual time: `free_at` is when it has no debt any more.
  struct Bucket {
    std::int64_t ps_per_byte = 0;  // 0: absent
    std::int64_t burst_ps = 0;
    std::int64_t free_at = 0;
    /// When a packet of `bytes` would be through; not later than `now`: it passes at once.
    std::int64_t finish(std::int64_t now, std::uint32_t bytes) const;
  };

  static Bucket bucket(double bits_per_second, std::uint64_t burst_bytes);
  bool lost();

  LinkOptions options_;
  Bucket policer_, wire_;
  std::int64_t queue_ps_ = 0;  // 0: unlimited
  Pareto extra_;
  bool lossy_ = false;  // Gilbert-Elliott
  Random random_;
};

}  // namespace tarpon
