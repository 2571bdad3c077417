#include "collectives/engine/learning/bounds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

constexpr std::uint64_t kLeastScaled = 64 << 10;  // bytes: smaller calls all take the same time
constexpr std::size_t kNearestClasses = 2;        // kinds within a factor of 4 are near
constexpr std::uint32_t kMaxOpen = 3;             // as many calls open or more are one kind
constexpr Duration kSlack = 2ms;  // above the median: a rank may wait that long for a core
constexpr Duration kGatherMargin = 2ms;
constexpr Duration kLeastStage = 1ms;   // of OptiReduce
constexpr double kShortestTime = 1e-9;  // seconds: a model of the network may take none
constexpr double kMaxGrowth = 2;        // of a time that was cut off
constexpr std::size_t kMaxHeld = 64;    // 300 ms of calls of 5 ms
constexpr double kSameTerms = 0.02;     // a smaller change is not told
constexpr Duration kStageTimeUnit = 16us;
constexpr Duration kLeastPatience = 500us;  // scheduling delays more than short operations take

// Early closing (OptiReduce).
constexpr double kPublishedHigh = 0.001;  // of loss
constexpr double kPublishedLow = 0.0001;
constexpr double kTroublePackets = 3;  // fewer are chance
constexpr double kMaxPatience = 0.5;
constexpr double kMinPatience = 0.01;
constexpr std::size_t kPublishedCalibration = 20;
constexpr double kPublishedQuantile = 0.95;

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Duration duration(double seconds) {
  constexpr double kMost = 1e9;  // a Duration holds more
  return Duration(static_cast<std::int64_t>(std::min(seconds, kMost) * 1e9));
}

double scaled(std::uint64_t bytes) {
  return static_cast<double>(std::max(bytes, kLeastScaled));
}

std::size_t class_of(std::uint64_t bytes) {
  return static_cast<std::size_t>(std::bit_width(std::max<std::uint64_t>(bytes, 1)) - 1);
}

double growth(double arrived) {
  return std::min(kMaxGrowth, 1 / std::max(arrived, 1e-9));
}

bool about_equal(Duration a, Duration b) {
  const double larger = std::max(seconds(a), seconds(b));
  return std::abs(seconds(a) - seconds(b)) <= kSameTerms * larger;
}

std::uint32_t microseconds(Duration duration) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(duration / 1us, 0, 0xffffffff));
}

}  // namespace

CallTerms encode(const BoundTerms& terms) {
  return {microseconds(terms.whole), microseconds(terms.gather),
          static_cast<std::uint32_t>(std::lround(std::clamp(terms.lost, 0.0, 1.0) * 1e6))};
}

BoundTerms decode(const CallTerms& terms) {
  return {std::chrono::microseconds(terms[0]), std::chrono::microseconds(terms[1]),
          std::min(terms[2] / 1e6, 1.0)};
}

std::uint32_t Bounds::calibration(BoundRule rule) {
  return rule == BoundRule::optireduce ? kPublishedCalibration : 0;
}

Bounds::SeriesKey Bounds::key_of(const CallKind& kind) {
  return {class_of(kind.bytes), kind.coded, std::clamp<std::uint32_t>(kind.open, 1, kMaxOpen)};
}

const Bounds::Series* Bounds::find(const CallKind& kind) const {
  const auto found = series_.find(key_of(kind));
  return found == series_.end() ? nullptr : &found->second;
}

double Bounds::Series::whole(double size) const {
  return std::max(*bound.bound() * size, bound.median() * size + seconds(kSlack));
}

/// Returns the series of the kind or, if that does not fit, of the nearest kind. Other sizes are
/// nearest, a smaller one first: its times hold more overhead, so D becomes too long rather than
/// too short. Fewer open calls come next: the time of calls grows with the number of calls that
/// share the network. The uncoded kinds come last: a coded call takes the time of coding more.
template <typename Fits>
std::optional<Bounds::Known> Bounds::nearest(const CallKind& kind, Duration coding,
                                             Fits fits) const {
  const std::uint32_t most_open = std::min(kind.open, kMaxOpen);
  for (const bool coded : {kind.coded, false}) {
    for (std::uint32_t open = most_open; open > 0; --open) {
      const double others = open == kMaxOpen ? 1.0 : static_cast<double>(kind.open) / open;
      for (std::size_t distance = 0; distance <= kNearestClasses; ++distance) {
        for (const bool larger : {false, true}) {
          const Series* series =
              find({larger ? kind.bytes << distance : kind.bytes >> distance, coded, open});
          if (series == nullptr || !fits(*series)) continue;
          return Known{series, others * scaled(kind.bytes),
                       coded == kind.coded ? 0 : seconds(coding)};
        }
      }
    }
  }
  return std::nullopt;
}

/// D, in seconds.
std::optional<double> Bounds::learnt(const CallKind& kind, Duration coding) const {
  const auto known =
      nearest(kind, coding, [](const Series& series) { return series.bound.bound().has_value(); });
  if (!known) return std::nullopt;
  return known->series->whole(known->factor) + known->coding;
}

/// Encoding comes before the scatter, decoding after it.
Duration Bounds::gather_time(const BoundedCall& call, Duration whole) const {
  if (call.rule == BoundRule::optireduce) return whole / 2;
  const auto known =
      nearest(call.kind, call.coding, [](const Series& series) { return !series.gather.empty(); });
  if (!known) return whole / 4;
  const double left = std::max(0.0, seconds(whole) - known->coding);
  const double gather =
      known->series->gather.split(left / known->factor, seconds(kGatherMargin) / known->factor);
  return std::min(duration(gather * known->factor + known->coding / 2), whole / 2);
}

Duration Bounds::whole_bound(const BoundedCall& call, Duration left) const {
  switch (call.rule) {
    case BoundRule::automatic:
      if (call.is_given()) return std::min(*call.limit, left);
      [[fallthrough]];
    case BoundRule::learnt: {
      const Duration most = std::min(call.limit.value_or(left), left);
      const std::optional<double> known = learnt(call.kind, call.coding);
      return known ? std::min(duration(*known), most) : most;
    }
    case BoundRule::optireduce: {
      const auto known = calibrations_.find(class_of(call.kind.bytes));
      if (known == calibrations_.end()) return left;
      RecentValues samples(kPublishedCalibration);
      for (const double one : known->second) samples.push(one);
      const double published = samples.quantile(kPublishedQuantile) * scaled(call.kind.bytes);
      return std::min(std::max(duration(published), 2 * kLeastStage), left);
    }
  }
  return left;
}

/// Sets the early closing of each stage, and the time of the whole call that peers are told.
void Bounds::plan_early(const CallKind& kind, BoundPlan& plan) const {
  const Series* series = find(kind);
  if (series == nullptr || series->stages[1].empty()) return;
  const double own = series->stages[1].quantile(0.5);
  std::vector<double> all{own};
  if (const auto told = told_.find(key_of(kind)); told != told_.end()) {
    for (const Told::Peer& peer : told->second.peers) {
      if (peer.usual > 0) all.push_back(peer.usual);
    }
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>((all.size() - 1) / 2);
  std::nth_element(all.begin(), middle, all.end());
  const double whole = *middle * scaled(kind.bytes);
  const double scatter = own > 0 ? series->stages[0].quantile(0.5) / own * whole : 0;
  plan.early[0] = std::max(kLeastPatience, duration(patience_ * std::min(scatter, whole)));
  plan.early[1] = std::max(kLeastPatience, duration(patience_ * whole));
  const auto units = std::llround(whole / seconds(kStageTimeUnit));
  // A longer time than the field can hold is not told.
  if (units < 0xffff) plan.stage_time = static_cast<std::uint16_t>(std::max(1ll, units));
}

Bounds::Told& Bounds::told_of(const CallKind& kind) {
  return told_[key_of(kind)];
}

BoundPlan Bounds::plan(const BoundedCall& call, Duration left) {
  BoundPlan plan;
  plan.terms.whole = whole_bound(call, left);
  plan.terms.gather = gather_time(call, plan.terms.whole);
  plan_early(call.kind, plan);
  Told& told = told_of(call.kind);
  plan.terms.lost = std::exchange(told.untold_lost, 0);
  plan.tells = !told.told || plan.terms.lost > 0 ||
               !about_equal(told.own.whole, plan.terms.whole) ||
               !about_equal(told.own.gather, plan.terms.gather);
  if (plan.tells) {
    told.own = plan.terms;
    told.told = true;
  }
  return plan;
}

void Bounds::heard(Rank peer, const CallKind& kind, const BoundTerms& terms) {
  if (peer >= options_.world_size) return;
  Told& told = told_of(kind);
  told.peers.resize(options_.world_size);
  Told::Peer& one = told.peers[peer];
  const double lost = std::max(one.terms.lost, terms.lost);
  one.bytes = kind.bytes;
  one.terms = terms;
  one.terms.lost = lost;
}

void Bounds::heard(Rank peer, const CallKind& kind, std::uint16_t stage_time) {
  if (stage_time == 0 || stage_time == 0xffff || peer >= options_.world_size) return;
  Told& told = told_of(kind);
  told.peers.resize(options_.world_size);
  told.peers[peer].usual = stage_time * seconds(kStageTimeUnit) / scaled(kind.bytes);
}

CallBound Bounds::agree(const BoundedCall& call, const BoundTerms& own, std::uint64_t live,
                        Duration left) const {
  std::vector<Duration> wholes{own.whole};
  Duration longest = own.gather;
  const auto found = told_.find(key_of(call.kind));
  const std::size_t peers = found == told_.end() ? 0 : found->second.peers.size();
  for (std::size_t peer = 0; peer < peers; ++peer) {
    const Told::Peer& one = found->second.peers[peer];
    if (one.bytes == 0 || (live & bit(static_cast<Rank>(peer))) == 0) continue;
    const double factor = scaled(call.kind.bytes) / scaled(one.bytes);
    wholes.push_back(duration(seconds(one.terms.whole) * factor));
    longest = std::max(longest, duration(seconds(one.terms.gather) * factor));
  }
  const auto middle = wholes.begin() + static_cast<std::ptrdiff_t>(wholes.size() / 2);
  std::nth_element(wholes.begin(), middle, wholes.end());
  const Duration whole = std::min(call.is_given() ? own.whole : *middle, left);
  return {whole, gather_time(call, whole), std::min(longest, whole / 2)};
}

void Bounds::learn(const BoundSample& sample, BoundRule rule, std::optional<Duration> limit) {
  if (sample.kind.bytes == 0) return;
  if (sample.silent != 0) {
    if (held_.size() == kMaxHeld) held_.erase(held_.begin());
    held_.push_back({sample, rule, limit});
    return;
  }
  // All ranks are heard again: the calls for which they were late count as calls with stragglers.
  for (Held& held : std::exchange(held_, {})) {
    held.sample.straggler = Duration::max();
    teach(held.sample, held.rule, held.limit);
  }
  teach(sample, rule, limit);
}

void Bounds::absent(Rank rank) {
  std::erase_if(held_, [rank](const Held& one) { return (one.sample.silent & bit(rank)) != 0; });
}

void Bounds::teach(const BoundSample& sample, BoundRule rule, std::optional<Duration> limit) {
  const double size = scaled(sample.kind.bytes);
  if (!sample.bounded) {
    std::vector<double>& calibration = calibrations_[class_of(sample.kind.bytes)];
    if (calibration.size() < kPublishedCalibration) {
      calibration.push_back(seconds(sample.elapsed) / size);
    }
    return;
  }
  const auto [at, fresh] = series_.try_emplace(key_of(sample.kind), options_);
  Series& series = at->second;
  for (std::size_t stage = 0; stage < 2; ++stage) {
    series.stages[stage].push(seconds(sample.stages[stage]) / size);
  }
  series.gather.learn(seconds(sample.stages[0]) * growth(sample.scattered) / size,
                      seconds(sample.gather) * growth(sample.gathered) / size);
  if (options_.x_loop) {
    if (rule == BoundRule::optireduce) {
      adapt_patience(sample.lost, sample.packets, kPublishedHigh, kPublishedLow);
    } else {
      adapt_patience(sample.early_lost, sample.packets, options_.loss_target / 10,
                     options_.loss_target / 100);
    }
  }
  const double lost = account(sample);
  if (const std::optional<double> learnt = series.bound.bound()) {
    const double whole = series.whole(size);
    const bool limited = limit && whole >= seconds(*limit);
    const bool raised = whole > *learnt * size;
    if (!limited && (lost > 0 || !raised)) series.bound.account(lost);
  }
  double time = std::max(seconds(sample.elapsed), kShortestTime);
  if (sample.straggler) {
    const double until = seconds(*sample.straggler) + seconds(sample.gather);
    time = std::clamp(until, time * growth(1 - sample.lost), kMaxGrowth * time);
    series.bound.learn(time / size, 0);
  } else {
    series.bound.learn(time / size, sample.lost);
  }
}

/// The largest share that any rank lost in the call of this kind before this one: the peers tell
/// their losses in the READYs of this one.
double Bounds::account(const BoundSample& sample) {
  Told& told = told_of(sample.kind);
  double lost = std::exchange(told.own_lost, sample.lost);
  told.untold_lost = std::max(told.untold_lost, sample.lost);
  for (Told::Peer& peer : told.peers) lost = std::max(lost, std::exchange(peer.terms.lost, 0));
  return lost;
}

/// Adapts x as OptiReduce does.
void Bounds::adapt_patience(double trouble, double packets, double high, double low) {
  if (trouble > high && trouble * packets >= kTroublePackets) {
    patience_ = std::min(kMaxPatience, 2 * patience_);
  } else if (trouble < low) {
    patience_ = std::max(kMinPatience, patience_ - 0.01);
  }
}

}  // namespace tarpon
