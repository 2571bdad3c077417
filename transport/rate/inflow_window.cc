#include "transport/rate/inflow_window.h"

#include <algorithm>

namespace tarpon {
namespace {

constexpr double kSmaller = 0.8;  // of the share of the window that arrived
constexpr double kLeastSmaller = 0.3;
constexpr double kGrowth = 1.0 / 16;  // after a clean interval
constexpr double kGrowthWhereCrowded = 1.0 / 4;
constexpr double kCarefulGrowth = 1.0 / 1024;  // above kNearOverflow of what overflowed
constexpr double kNearOverflow = 0.9;
constexpr std::uint32_t kForgotten = 128;   // intervals after which what overflowed is tried again
constexpr double kRetreat = 4;              // times the share lost in a near-clean interval
constexpr double kHeld = 0.9;               // of what a queue took: never below for a little loss
constexpr double kSevere = 0.02;            // of packets, beyond the link's own
constexpr std::uint32_t kSevereAtMost = 2;  // in a row, before what a queue took counts no more
constexpr double kLongestWait = 4e-3;       // seconds, of a round trip
constexpr double kShorter = 0.9;
constexpr double kUnused = 4;      // times what was on its way: more of a window was not in use
constexpr double kCrowded = 0.85;  // our share of a link: others have the rest
constexpr double kCrowdedQueue = 0.75;   // the same of its queue, by Little's law; bursts blur it
constexpr double kStanding = 1.0 / 8;    // of the mean wait: the queue is never empty
constexpr std::uint32_t kStayed = 3;     // intervals in a row; fewer: a processor was busy
constexpr std::uint32_t kComeBack = 32;  // intervals in which others that stayed are expected
constexpr double kMostOfQueue = 1.5;     // times all that waits: more would only be lost

}  // namespace

InflowWindow::InflowWindow(std::uint64_t first, std::uint64_t least, std::uint64_t most)
    : least_(std::min(least, most)), most_(most), bytes_(std::min(first, most)) {}

void InflowWindow::look_for_others(const InflowInterval& interval) {
  if (interval.queued && !starting_) {
    share_.observe(static_cast<double>(bytes()), interval.bytes_per_second, interval.steady);
  }
  fastest_.observe(interval.bytes_per_second);
  const double ours = interval.bytes_per_second * interval.round_trip;
  // A queue that is empty now and then holds our own bursts.
  const bool stands = interval.steady && interval.least_wait > kStanding * interval.wait;
  const bool more_waits = stands && ours < kCrowdedQueue * fastest_.rate() * interval.wait;
  more_in_a_row_ = more_waits ? more_in_a_row_ + 1 : 0;
  expected_for_ =
      more_in_a_row_ >= kStayed ? kComeBack : expected_for_ - std::min(expected_for_, 1u);
  const bool slower = interval.bytes_per_second < kCrowded * fastest_.rate();
  const bool others = more_waits || (expected_for_ > 0 && slower);
  crowded_ = interval.queued && (others || share_.share() < kCrowded);
}

void InflowWindow::grow(const InflowInterval& interval) {
  severe_in_a_row_ = 0;
  const auto window = static_cast<double>(bytes_);
  if (interval.queued) {
    const double used = kUnused * interval.bytes_per_second * interval.round_trip;
    held_ = std::max(held_, std::min(window, used));
  }
  if (++since_overflow_ > kForgotten) overflowed_at_ = most_;
  const bool near = !crowded_ && window > kNearOverflow * static_cast<double>(overflowed_at_);
  // More would only wait longer: in a deep queue, or in our own buffers while we do not get to run.
  if (interval.round_trip > kLongestWait) {
    held_ = 0;
    return make_smaller(window * kShorter);
  }
  if (near && interval.queued && interval.excess > 0) {
    return make_smaller(window * (1 - kRetreat * interval.excess));
  }
  const double queue = fastest_.rate() * interval.round_trip;
  if (crowded_ && window > kMostOfQueue * queue) return;
  const double growth = starting_  ? 1
                        : near     ? kCarefulGrowth
                        : crowded_ ? kGrowthWhereCrowded
                                   : kGrowth;
  bytes_ = std::min(most_, static_cast<std::uint64_t>(window * (1 + growth)));
}

/// Others in the same queue, and links that lose by themselves, make us lose a little now and then,
/// whatever the window: a window that shrank for that would leave the link to others. A window that
/// is itself too large loses all its excess, again and again.
void InflowWindow::shrink(const InflowInterval& interval) {
  overflowed();
  severe_in_a_row_ = interval.excess > kSevere ? severe_in_a_row_ + 1 : 0;
  if (severe_in_a_row_ > kSevereAtMost) held_ = 0;
  const double factor = std::max(kLeastSmaller, (crowded_ ? 1 : kSmaller) * (1 - interval.loss));
  make_smaller(static_cast<double>(bytes_) * factor);
}

/// Sets the window to `smaller`, but neither below what a queue surely takes nor below the minimum.
void InflowWindow::make_smaller(double smaller) {
  const double floor = std::min(static_cast<double>(bytes_), kHeld * held_);
  bytes_ = std::max(static_cast<std::uint64_t>(std::max(smaller, floor)), least_);
}

void InflowWindow::overflowed() {
  starting_ = false;
  overflowed_at_ = bytes_;
  since_overflow_ = 0;
}

}  // namespace tarpon
