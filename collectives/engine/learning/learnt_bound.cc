#include "collectives/engine/learning/learnt_bound.h"

#include <algorithm>

#include "collectives/engine/learning/seconds.h"

namespace tarpon {
namespace {

constexpr std::size_t kNearestClasses = 2;  // kinds within a factor of 4 are near
constexpr std::uint32_t kUsualKnown = 50;   // calls, before any is cut
constexpr Duration kLeastGather = 2ms;      // while nothing is known
constexpr Duration kSlack = 2ms;  // above the median: a rank may wait that long for a core
constexpr Duration kGatherMargin = 2ms;
constexpr double kShortestTime = 1e-9;  // seconds: a model of the network may take none
constexpr double kMaxGrowth = 2;        // of a time that was cut off

double growth(double arrived) {
  return std::min(kMaxGrowth, 1 / std::max(arrived, 1e-9));
}

}  // namespace

double LearntBound::Series::whole(double size) const {
  return std::max(*bound.bound() * size, bound.median() * size + to_seconds(kSlack));
}

const LearntBound::Series* LearntBound::find(const CallKind& kind) const {
  const auto found = series_.find(key_of(kind));
  return found == series_.end() ? nullptr : &found->second;
}

/// Returns the series of the call's kind or, if that does not fit, of the nearest kind, at most
/// `farthest` size classes away. Other sizes
/// are nearest, a smaller one first: its times hold more overhead, so D becomes too long rather
/// than too short. Fewer open calls come next: the time of calls grows with the number of calls
/// that share the network. The uncoded kinds come last: a coded call takes the time of coding more.
template <typename Fits>
std::optional<LearntBound::Known> LearntBound::nearest(const BoundedCall& call,
                                                       std::size_t farthest, Fits fits) const {
  const CallKind& kind = call.kind;
  const std::uint32_t most_open = std::min(kind.open, kMaxOpen);
  for (const bool coded : {kind.coded, false}) {
    for (std::uint32_t open = most_open; open > 0; --open) {
      const double others = open == kMaxOpen ? 1.0 : static_cast<double>(kind.open) / open;
      for (std::size_t distance = 0; distance <= farthest; ++distance) {
        for (const bool larger : {false, true}) {
          const Series* series = find({larger ? kind.bytes << distance : kind.bytes >> distance,
                                       coded, open, kind.over_hosts, kind.collective});
          if (series == nullptr || !fits(*series)) continue;
          return Known{series, others * scaled(kind.bytes),
                       coded == kind.coded ? 0 : to_seconds(call.coding)};
        }
      }
    }
  }
  return std::nullopt;
}

Duration LearntBound::whole(const BoundedCall& call, Duration left) const {
  const Duration most = std::min(call.limit.value_or(left), left);
  if (call.is_given()) return most;
  const auto known = nearest(call, 0, [](const Series& series) {
    return series.calls >= kUsualKnown && series.bound.bound().has_value();
  });
  if (!known) return most;
  return std::min(to_duration(known->series->whole(known->factor) + known->coding), most);
}

/// Encoding comes before the scatter, decoding after it.
Duration LearntBound::gather(const BoundedCall& call, Duration whole) const {
  if (!call.kind.gathers()) return Duration::zero();
  const auto known =
      nearest(call, kNearestClasses, [](const Series& series) { return !series.gather.empty(); });
  if (!known) return std::min(std::max(kLeastGather, whole / 10), whole / 2);
  const double left = std::max(0.0, to_seconds(whole) - known->coding);
  const double gather =
      known->series->gather.split(left / known->factor, to_seconds(kGatherMargin) / known->factor);
  return std::min(to_duration(gather * known->factor + known->coding / 2), whole / 2);
}

LearntBound::Series& LearntBound::series_of(const CallKind& kind) {
  return series_.try_emplace(key_of(kind), world_size_, loss_target_).first->second;
}

void LearntBound::set_loss_target(double share) {
  if (share == loss_target_) return;
  loss_target_ = share;
  for (auto& [kind, series] : series_) series.bound.set_target(share);
}

void LearntBound::learn_gather(const BoundSample& sample) {
  const double size = scaled(sample.kind.bytes);
  series_of(sample.kind)
      .gather.learn(to_seconds(sample.stages[0]) * growth(sample.scattered) / size,
                    to_seconds(sample.gather) * growth(sample.gathered) / size);
}

void LearntBound::learn(const BoundSample& sample, double lost, std::optional<Duration> limit) {
  const double size = scaled(sample.kind.bytes);
  Series& series = series_of(sample.kind);
  series.calls = std::min(series.calls + 1, kUsualKnown);
  if (const std::optional<double> learnt = series.bound.bound()) {
    const double whole = series.whole(size);
    const bool limited = limit && whole >= to_seconds(*limit);
    const bool raised = whole > *learnt * size;
    if (!limited && (lost > 0 || !raised)) series.bound.account(lost);
  }
  const double time = std::max(to_seconds(sample.elapsed), kShortestTime);
  if (sample.straggler) {
    const double until = to_seconds(*sample.straggler) + to_seconds(sample.gather);
    const double would_take = std::clamp(until, time * growth(1 - sample.lost), kMaxGrowth * time);
    series.bound.learn(would_take / size, 0);
  } else {
    series.bound.learn(time / size, sample.lost);
  }
}

}  // namespace tarpon
