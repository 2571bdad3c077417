#include "collectives/engine/learning/target_bound.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tarpon {
namespace {

constexpr std::size_t kNewLevelCalls = 5;
constexpr double kUnusual = 0.95;  // share of the latest calls
constexpr double kFloor = 1.1;     // x the median
constexpr double kUsual = 0.9;     // share of the latest calls that no bound cuts
constexpr std::size_t kMany = 50;
constexpr double kNoGain = 1.03;        // a time that is longer by less counts as equal
constexpr double kTail = 0.99;          // of the calls whose time counts beside the mean
constexpr double kMaxSampleGrowth = 2;  // of the time of a call that lost something
constexpr double kGain = 0.005;         // log c for each call that lost nothing
constexpr double kMinCorrection = 1.0 / 32;
constexpr double kMaxCorrection =
    1;  // calls that lose less than the target do not shorten the bound
constexpr double kFastestFall = 0.90;  // of c, by one call
constexpr double kFastestRise = 1.02;
constexpr double kAlarming = 10;  // times the target: the share that one call lost
constexpr double kAlarm = 2;      // the bound is so many times as long after such a call
constexpr double kCalming = 0.93;

}  // namespace

void TargetBound::learn(double time, double lost) {
  const double sample = time * std::min(kMaxSampleGrowth, 1 / std::max(1 - lost, 1e-9));
  if (!bound_ || sample <= unusual()) {
    above_.clear();
    push(sample);
  } else {
    above_.push_back(sample);
    if (above_.size() < kNewLevelCalls) {
      push(sample);
    } else {
      start_anew();
    }
  }
  if (ratios_.size() >= least_known_) solve();
}

void TargetBound::push(double sample) {
  latest_.push(std::log(sample));
  const double ratio = sample / typical();
  if (const auto oldest = ratios_.push(ratio)) {
    sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), *oldest));
  }
  sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), ratio), ratio);
}

void TargetBound::start_anew() {
  latest_.clear();
  ratios_.clear();
  for (const double sample : above_) latest_.push(std::log(sample));
  for (const double sample : above_) ratios_.push(sample / typical());
  sorted_.assign(ratios_.values().begin(), ratios_.values().end());
  std::sort(sorted_.begin(), sorted_.end());
  above_.clear();
  least_known_ = kNewLevelCalls;
  debt_ = 0;
  correction_ = 1;
  alarm_ = 1;
}

void TargetBound::set_target(double target) {
  target_ = target;
  if (bound_) solve();
}

void TargetBound::account(double lost) {
  if (bound_) alarm_ = lost > kAlarming * target_ ? kAlarm : std::max(1.0, alarm_ * kCalming);
  if (!bound_ || (at_floor_ && lost == 0)) return;
  debt_ = std::clamp(debt_ + 1 - lost / target_, std::log(kMinCorrection) / kGain,
                     std::log(kMaxCorrection) / kGain);
  correction_ =
      std::clamp(std::exp(kGain * debt_), correction_ * kFastestFall, correction_ * kFastestRise);
}

void TargetBound::solve() {
  const double wanted = typical() * least_loss(shortest(correction_ * target_));
  const double least = floor();
  at_floor_ = wanted <= least;
  bound_ = std::max(wanted, least) * alarm_;
}

/// A time that hardly any call exceeds: five longer ones in a row are a new level.
double TargetBound::unusual() const {
  return std::min(*bound_ / alarm_, std::exp(latest_.quantile(kUnusual)));
}

/// g.
double TargetBound::typical() const {
  const std::span<const double> logs = latest_.values();
  return std::exp(std::accumulate(logs.begin(), logs.end(), 0.0) /
                  static_cast<double>(logs.size()));
}

double TargetBound::median() const {
  return std::exp(latest_.quantile(0.5));
}

double TargetBound::floor() const {
  const double least = kFloor * median();
  // Of a few calls this percentile is the longest call, whose estimate may be twice too long.
  return latest_.size() < kMany ? least : std::max(least, std::exp(latest_.quantile(kUsual)));
}

/// The smallest r with a mean of max(0, 1 - r / ratio) of at most `share`. If k ratios are above r,
/// that mean is (k - r x the sum of their inverses) / n.
double TargetBound::shortest(double share) const {
  const double allowed = share * static_cast<double>(sorted_.size());
  double above = 0, inverses = 0;
  for (auto ratio = sorted_.rbegin(); ratio != sorted_.rend(); ++ratio) {
    above += 1;
    inverses += 1 / *ratio;
    const double least = (above - allowed) / inverses;
    if (ratio + 1 == sorted_.rend() || least >= *(ratio + 1)) return std::max(least, 0.0);
  }
  return 0;
}

/// The longest r with which the mean and the 99th percentile of the known calls are as with
/// `ratio`, within kNoGain: what a shorter one loses buys no time.
double TargetBound::least_loss(double ratio) const {
  const auto size = static_cast<double>(sorted_.size());
  const auto above = std::upper_bound(sorted_.begin(), sorted_.end(), ratio);
  auto longer = static_cast<double>(sorted_.end() - above);
  const double sum = std::accumulate(sorted_.begin(), above, longer * ratio);
  double spare = (kNoGain - 1) * sum;
  double longest = ratio;
  for (auto next = above; next != sorted_.end(); ++next, --longer) {
    const double step = std::min(*next - longest, spare / longer);
    longest += step;
    spare -= step * longer;
    if (spare <= 0) break;
  }
  const auto tail = static_cast<std::size_t>(std::ceil(kTail * size)) - 1;
  return sorted_[tail] > ratio ? std::min(longest, kNoGain * ratio) : longest;
}

}  // namespace tarpon
