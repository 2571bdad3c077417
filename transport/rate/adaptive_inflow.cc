#include "transport/rate/adaptive_inflow.h"

#include <algorithm>
#include <cmath>

namespace tarpon {
namespace {

// Loss beyond the link's own that counts as ours: little where packets wait in a queue or the rate
// is known; more elsewhere, since few links drop only a percent or two when they get too much, and
// many lose that much by themselves.
constexpr double kExcess = 0.02;
constexpr double kExcessWhereKnown = 0.005;
constexpr double kExcessWhereCrowded = 0.25;  // repaired; less would leave the link to others
constexpr double kReordered = 8;              // packets
constexpr double kOwnMost = 0.05;             // above it a link is overloaded, whatever else it is
constexpr double kOwnMostProved = 0.5;
constexpr std::uint32_t kOwnAfter = 6;   // lossy intervals in a row that no change of ours affected
constexpr std::uint32_t kPaceAfter = 2;  // lossy intervals in a row that the window did not cure
constexpr std::uint64_t kFirstWindow = 256 << 10;  // fits the queues of common switches and qdiscs
constexpr Duration kQueueing = 50us;               // on top of twice the base
// Longest base within a data centre: a longer one never saw the queue empty, as others fill it.
constexpr Duration kLongestBase = 250us;
constexpr double kSteady = 0.5;                // of the best rate; less: senders paused
constexpr std::uint64_t kBurstSample = 64;     // packets
constexpr double kBurstLoss = 0.02;            // share of unasked packets
constexpr std::uint32_t kTriedAgain = 32;      // samples
constexpr std::uint32_t kMostAdvertised = 15;  // four bits

}  // namespace

AdaptiveInflow::AdaptiveInflow(std::uint64_t least, std::uint64_t most, std::uint32_t siblings)
    : siblings_(siblings), window_(std::max(kFirstWindow / siblings, least), least, most) {}

std::uint32_t AdaptiveInflow::unasked_slots(std::uint32_t advertised,
                                            std::uint32_t initial_credit) const {
  return advertised == 0 ? initial_credit : std::min(initial_credit, 2 * advertised + 2);
}

void AdaptiveInflow::flows_changed() {
  pace_ = {};
  rates_.fill(0);
  lossy_intervals_ = 0;
  window_.start_again();
}

void AdaptiveInflow::judge_interval(const InflowCounts& counts) {
  base_ = std::min(base_, counts.shortest_round_trip);
  unasked_.add(counts.unasked);
  if (unasked_.seen() >= kBurstSample) judge_unasked();
  judge_credited(counts);
}

/// OptiReduce's dynamic incast, in credit: one step more after clean starts, half after a lossy
/// one. A number that was too high is tried again only after many clean starts.
void AdaptiveInflow::judge_unasked() {
  const std::uint32_t now = advertised_ == 0 ? kMostAdvertised : advertised_;
  if (unasked_.loss() > own_loss_ + kBurstLoss) {
    too_much_ = now;
    clean_starts_ = 0;
    advertised_ = std::max(1u, now / 2);
  } else if (advertised_ != 0 && (now + 1 < too_much_ || ++clean_starts_ > kTriedAgain)) {
    advertised_ = now == kMostAdvertised ? 0 : now + 1;
    clean_starts_ = 0;
  }
  unasked_ = {};
}

void AdaptiveInflow::judge_credited(const InflowCounts& counts) {
  const InflowInterval now = interval(counts);
  if (siblings_ == 1) window_.look_for_others(now);
  const auto packets = static_cast<double>(counts.credited.seen());
  const double excess = window_.crowded()          ? kExcessWhereCrowded
                        : now.queued || pace_.on() ? kExcessWhereKnown
                                                   : kExcess;
  // Packets that are only reordered across the end of an interval even out over the next ones.
  const double expected = (own_loss_ + excess) * packets + 3 * std::sqrt(own_loss_ * packets);
  too_many_ = std::max(0.0, too_many_ + static_cast<double>(counts.credited.lost) - expected);
  if (too_many_ > kReordered) {
    too_many_ = 0;
    slow_down(now);
  } else {
    speed_up(now);
  }
}

InflowInterval AdaptiveInflow::interval(const InflowCounts& counts) {
  InflowInterval result;
  const double seconds = std::chrono::duration<double>(counts.busy).count();
  result.loss = counts.credited.loss();
  result.excess = std::max(0.0, result.loss - own_loss_);
  if (seconds > 0) result.bytes_per_second = static_cast<double>(counts.delivered_bytes) / seconds;
  rates_[next_rate_++ % rates_.size()] = result.bytes_per_second;
  result.best = *std::max_element(rates_.begin(), rates_.end());
  result.steady = !counts.rested && result.bytes_per_second > kSteady * result.best;
  if (counts.round_trips > 0) {
    const Duration mean = counts.all_round_trips / counts.round_trips;
    const Duration base = std::min(base_, kLongestBase);
    const auto seconds_above = [](Duration time, Duration base) {
      return std::chrono::duration<double>(std::max(Duration::zero(), time - base)).count();
    };
    result.round_trip = std::chrono::duration<double>(mean).count();
    result.wait = seconds_above(mean, base);
    result.least_wait = seconds_above(counts.shortest_round_trip, base);
    result.queued = mean > 2 * base + kQueueing;
  }
  return result;
}

void AdaptiveInflow::slow_down(const InflowInterval& interval) {
  ++lossy_intervals_;
  if (pace_.on() && !interval.queued) {
    if (pace_.slow_down(interval.loss)) own_loss_ = std::min(interval.loss, kOwnMostProved);
    return window_.overflowed();
  }
  // If packets wait now, the link has a queue: at first it was too busy for the wait to show.
  pace_.end();
  if (lossy_intervals_ > kOwnAfter) own_loss_ = std::min(interval.loss, kOwnMost);
  window_.shrink(interval);
  const bool cured_by_window = interval.queued && (window_.crowded() || !window_.least());
  if (lossy_intervals_ >= kPaceAfter && !cured_by_window && interval.bytes_per_second > 0) {
    pace_.begin(interval.best, interval.loss);
  }
}

void AdaptiveInflow::speed_up(const InflowInterval& interval) {
  lossy_intervals_ = 0;
  // If some of the loss may be ours, the link's own loss only falls, and slowly. Otherwise it would
  // creep up with what we cause, or down with every lucky interval.
  const bool ours = interval.queued || pace_.on();
  own_loss_ = ours ? (31 * own_loss_ + std::min(own_loss_, interval.loss)) / 32
                   : (7 * own_loss_ + interval.loss) / 8;
  if (pace_.on()) {
    pace_.speed_up(interval.bytes_per_second);
  } else {
    window_.grow(interval);
  }
}

}  // namespace tarpon
