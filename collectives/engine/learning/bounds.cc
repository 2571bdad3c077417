#include "collectives/engine/learning/bounds.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "collectives/engine/learning/seconds.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

constexpr std::size_t kMaxHeld = 64;  // 300 ms of calls of 5 ms
constexpr double kSameTerms = 0.02;   // a smaller change is not told
constexpr Duration kStageTimeUnit = 16us;
constexpr Duration kLeastPatience = 500us;  // scheduling delays more than short operations take
constexpr double kTroublePackets = 3;       // fewer are chance
constexpr double kMaxPatience = 0.5;
constexpr double kMinPatience = 0.01;

bool about_equal(Duration a, Duration b) {
  const double larger = std::max(to_seconds(a), to_seconds(b));
  return std::abs(to_seconds(a) - to_seconds(b)) <= kSameTerms * larger;
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

// The next two functions alone know the rules by name.

std::uint32_t Bounds::calibration(BoundRule rule) {
  return rule == BoundRule::optireduce ? PercentileBound::kCalibration : 0;
}

const BoundEstimate& Bounds::estimate(BoundRule rule) const {
  if (rule == BoundRule::optireduce) return percentile_;
  return learnt_;
}

/// Sets the early closing of each stage, and the time of the whole call that peers are told.
void Bounds::plan_early(const CallKind& kind, BoundPlan& plan) const {
  const auto usual = usual_.find(key_of(kind));
  if (usual == usual_.end()) return;
  const double own = usual->second.stages[1].quantile(0.5);
  std::vector<double> all{own};
  if (const auto told = told_.find(key_of(kind)); told != told_.end()) {
    for (const Told::Peer& peer : told->second.peers) {
      if (peer.usual > 0) all.push_back(peer.usual);
    }
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>((all.size() - 1) / 2);
  std::nth_element(all.begin(), middle, all.end());
  const double whole = *middle * scaled(kind.bytes);
  const double scatter = own > 0 ? usual->second.stages[0].quantile(0.5) / own * whole : 0;
  plan.early[0] = std::max(kLeastPatience, to_duration(patience_ * std::min(scatter, whole)));
  plan.early[1] = std::max(kLeastPatience, to_duration(patience_ * whole));
  const auto units = std::llround(whole / to_seconds(kStageTimeUnit));
  // A longer time than the field can hold is not told.
  if (units < 0xffff) plan.stage_time = static_cast<std::uint16_t>(std::max(1ll, units));
}

Bounds::Told& Bounds::told_of(const CallKind& kind) {
  return told_[key_of(kind)];
}

BoundPlan Bounds::plan(const BoundedCall& call, Duration left) {
  BoundPlan plan;
  const BoundEstimate& rule = estimate(call.rule);
  plan.terms.whole = rule.whole(call, left);
  plan.terms.gather = rule.gather(call, plan.terms.whole);
  plan_early(call.kind, plan);
  const Duration most = std::min(call.limit.value_or(left), left);
  if (!call.is_given() && plan.terms.whole >= most) plan.early = {};  // D is not known
  Told& told = told_of(call.kind);
  plan.terms.lost = std::exchange(told.untold_lost, 0);
  plan.tells = !told.told || plan.terms.lost > 0 ||
               !about_equal(told.own.whole, plan.terms.whole) ||
               !about_equal(told.own.gather, plan.terms.gather);
  if (told.told) plan.before = told.own;
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
  told.peers[peer].usual = stage_time * to_seconds(kStageTimeUnit) / scaled(kind.bytes);
}

CallBound Bounds::agree(const BoundedCall& call, const std::optional<BoundTerms>& own,
                        std::uint64_t live, Duration left) const {
  std::vector<Duration> wholes;
  Duration longest{};
  if (own) {
    wholes.push_back(own->whole);
    longest = own->gather;
  }
  const auto found = told_.find(key_of(call.kind));
  const std::size_t peers = found == told_.end() ? 0 : found->second.peers.size();
  for (std::size_t peer = 0; peer < peers; ++peer) {
    const Told::Peer& one = found->second.peers[peer];
    if (one.bytes == 0 || (live & bit(static_cast<Rank>(peer))) == 0) continue;
    const double factor = scaled(call.kind.bytes) / scaled(one.bytes);
    wholes.push_back(to_duration(to_seconds(one.terms.whole) * factor));
    longest = std::max(longest, to_duration(to_seconds(one.terms.gather) * factor));
  }
  const Duration expected = estimate(call.rule).whole(call, left);  // given, or of this rank alone
  if (wholes.empty()) wholes.push_back(expected);
  const auto middle = wholes.begin() + static_cast<std::ptrdiff_t>(wholes.size() / 2);
  std::nth_element(wholes.begin(), middle, wholes.end());
  const Duration whole = std::min(call.is_given() ? expected : *middle, left);
  const Duration gather = estimate(call.rule).gather(call, whole);
  return {whole, gather, std::min(std::max(longest, gather), whole / 2)};
}

void Bounds::learn(const BoundSample& sample, BoundRule rule, std::optional<Duration> limit) {
  if (sample.kind.bytes == 0) return;
  if (sample.bounded) learnt_.learn_gather(sample);
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
  if (!sample.bounded) return percentile_.learn(sample);
  StageTimes& usual = usual_[key_of(sample.kind)];
  for (std::size_t stage = 0; stage < 2; ++stage) {
    usual.stages[stage].push(to_seconds(sample.stages[stage]) / scaled(sample.kind.bytes));
  }
  if (options_.x_loop) adapt_patience(estimate(rule).early_loss(sample), sample.packets);
  learnt_.learn(sample, account(sample), limit);
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
void Bounds::adapt_patience(const EarlyLoss& loss, double packets) {
  if (loss.share > loss.high && loss.share * packets >= kTroublePackets) {
    patience_ = std::min(kMaxPatience, 2 * patience_);
  } else if (loss.share < loss.low) {
    patience_ = std::max(kMinPatience, patience_ - 0.01);
  }
}

}  // namespace tarpon
