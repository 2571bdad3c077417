#include "collectives/driver/share_plan.h"

#include <algorithm>
#include <utility>

namespace tarpon {
namespace {

constexpr double kPromising = 1.05;   // modelled time over that of the trial
constexpr double kConfirmed = 0.5;    // of the modelled gain, that has to be measured
constexpr double kNotSlower = 1.02;   // the same
constexpr double kChanged = 0.95;     // of the time at which a trial failed
constexpr int kMostFailures = 5;      // that are counted: 2 << 5 rounds of patience
constexpr double kEvenWithin = 0.05;  // of an even part

}  // namespace

void SharePlan::Patience::fail(double seconds) {
  failures = std::min(failures + 1, kMostFailures);
  rounds_left = 2 << failures;
  failed_seconds = seconds;
}

bool SharePlan::Patience::over(double seconds) {
  if (seconds < kChanged * failed_seconds) *this = {};
  if (rounds_left > 0) --rounds_left;
  return rounds_left == 0;
}

SharePlan::SharePlan(std::uint32_t ranks) : kept_(ranks, 1.0 / ranks) {}

Shares SharePlan::shares() const {
  const Weights& weights = trial_ ? trial_->weights : kept_;
  return is_even(weights) ? Shares() : Shares(weights);
}

SharePlan::Weights SharePlan::even() const {
  return Weights(kept_.size(), 1.0 / static_cast<double>(kept_.size()));
}

bool SharePlan::is_even(const Weights& weights) const {
  const double part = 1.0 / static_cast<double>(weights.size());
  return std::all_of(weights.begin(), weights.end(),
                     [&](double weight) { return std::abs(weight - part) <= kEvenWithin * part; });
}

/// The time of a call in units of a bucket over a link of rate 1 (algorithm: shares.h).
double SharePlan::model(const Weights& weights) const {
  const auto others = static_cast<double>(weights.size()) - 2;
  double longest = 0;
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    longest = std::max(longest, (1 + others * weights[rank]) / rates_[rank]);
  }
  return longest;
}

void SharePlan::end_round(std::span<const ShareSample> samples) {
  double seconds = 0;
  for (const ShareSample& sample : samples) {
    if (sample.seconds <= 0 || sample.rate <= 0) return;
    if (seconds == 0 || sample.seconds < seconds) seconds = sample.seconds;
  }
  if (trial_) return judge(seconds);
  const bool first = kept_seconds_ == 0;
  kept_seconds_ = first ? seconds : (kept_seconds_ + seconds) / 2;
  rates_.resize(samples.size());
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    rates_[rank] = first ? samples[rank].rate : (rates_[rank] + samples[rank].rate) / 2;
  }
  trial_ = next_trial();
}

void SharePlan::judge(double seconds) {
  const Trial trial = *std::exchange(trial_, std::nullopt);
  if (seconds > trial.limit * kept_seconds_) return patience(trial.kind).fail(kept_seconds_);
  kept_ = is_even(trial.weights) ? even() : trial.weights;
  kept_seconds_ = seconds;
  patience_ = {};
  if (trial.kind == Kind::faster) patience(Kind::evener).fail(seconds);  // they were evener before
}

std::optional<SharePlan::Trial> SharePlan::next_trial() {
  const Shares suited = Shares::for_speeds(rates_);
  Weights weights;
  for (Rank rank = 0; rank < suited.ranks(); ++rank) {
    weights.push_back(static_cast<double>(suited.part(rank)) / Shares::kWhole);
  }
  const double gain = model(kept_) / model(weights);
  const bool tries_faster = patience(Kind::faster).over(kept_seconds_);
  const bool tries_evener = !is_even(kept_) && patience(Kind::evener).over(kept_seconds_);
  if (gain > kPromising && tries_faster) {
    return Trial{Kind::faster, 1 / (1 + kConfirmed * (gain - 1)), std::move(weights)};
  }
  if (!tries_evener) return std::nullopt;
  const double part = 1.0 / static_cast<double>(kept_.size());
  weights = kept_;
  for (double& weight : weights) weight = (weight + part) / 2;
  return Trial{Kind::evener, kNotSlower, std::move(weights)};
}

}  // namespace tarpon
