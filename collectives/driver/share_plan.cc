#include "collectives/driver/share_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace tarpon {
namespace {

constexpr double kPromising = 1.05;   // modelled time of the kept shares, over that of a trial
constexpr double kConfirmed = 0.5;    // share of the modelled gain that has to be measured
constexpr double kNotSlower = 1.02;   // time with evener shares, over that of the kept ones
constexpr double kChanged = 0.95;     // time of the kept shares, over that when a trial failed
constexpr int kMostFailures = 5;      // failures that count: 2 << 5 rounds of patience
constexpr double kEvenWithin = 0.05;  // of an even part
constexpr double kTogether = 0.1;     // of a call's time: ranks that begin within it begin together
constexpr double kUnusual = 0.5;      // of a call's time: much later than in the round before

}  // namespace

void SharePlan::Patience::begin_again() {
  failures = std::min(failures, 1);
  rounds_left = 0;
}

void SharePlan::Patience::fail(double time) {
  failures = std::min(failures + 1, kMostFailures);
  rounds_left = 2 << failures;
  failed_time = time;
}

bool SharePlan::Patience::over(double time) {
  if (time < kChanged * failed_time) *this = {};
  if (rounds_left > 0) --rounds_left;
  return rounds_left == 0;
}

SharePlan::SharePlan(std::uint32_t ranks) : even_part_(1.0 / ranks), kept_(ranks, even_part_) {}

Shares SharePlan::shares() const {
  const Weights& weights = trial_ ? trial_->weights : kept_;
  return is_even(weights) ? Shares() : Shares(weights);
}

bool SharePlan::is_even(const Weights& weights) const {
  return std::all_of(weights.begin(), weights.end(), [this](double weight) {
    return std::abs(weight - even_part_) <= kEvenWithin * even_part_;
  });
}

/// How much earlier than the last rank each one begins, for a byte of the bucket.
std::vector<double> SharePlan::leads() const {
  std::vector<double> result(lags_.size());
  if (!late_) return result;
  const double latest = *std::max_element(lags_.begin(), lags_.end());
  std::transform(lags_.begin(), lags_.end(), result.begin(),
                 [latest](double lag) { return latest - lag; });
  return result;
}

/// The time of a call from the start of the last rank on, for a byte of the bucket (algorithm:
/// shares.h). After that start each rank still has a whole bucket to send and to receive: what the
/// last rank gives it, and the results.
double SharePlan::model(const Weights& weights) const {
  const auto others = static_cast<double>(weights.size()) - 2;
  const std::vector<double> lead = leads(), rates = link_rates();
  double longest = 0;
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    const double all = (1 + others * weights[rank]) / rates[rank] - lead[rank];
    longest = std::max({longest, all, 1 / rates[rank]});
  }
  return longest;
}

/// Adds the samples to the history.
void SharePlan::remember(std::span<const ShareSample> samples) {
  constexpr std::uint64_t kPrime = 1099511628211;  // of FNV-1a
  for (const ShareSample& sample : samples) {
    for (const std::uint64_t part :
         {std::bit_cast<std::uint64_t>(sample.rate),
          std::bit_cast<std::uint64_t>(sample.time_a_byte),
          std::bit_cast<std::uint64_t>(sample.lag_a_byte), sample.history}) {
      history_ = std::rotl((history_ ^ part) * kPrime, 29);
    }
  }
}

/// Resets the plan. The history records the reset.
void SharePlan::begin_anew(std::span<const ShareSample> samples) {
  *this = SharePlan(static_cast<std::uint32_t>(samples.size()));
  remember(samples);
}

void SharePlan::end_round(std::span<const ShareSample> samples) {
  const bool alike = std::all_of(samples.begin(), samples.end(), [&](const ShareSample& sample) {
    return sample.history == samples[0].history;
  });
  if (!alike) return begin_anew(samples);
  double time = 0;
  for (const ShareSample& sample : samples) {
    if (sample.time_a_byte <= 0 || sample.rate <= 0) return;
    if (time == 0 || sample.time_a_byte < time) time = sample.time_a_byte;
  }
  remember(samples);
  const bool usual = learn_lags(time, samples);
  if (trial_) {
    if (usual && !changed_) return judge(time);
    return trial_.reset();  // its time says nothing about its shares: it is tried again
  }
  if (!usual) return;
  learn(time, samples);
  trial_ = next_trial();
}

/// Learns how late the ranks are. Returns false if a rank was late in this round alone: then the
/// others waited for it, and their times and rates are not used.
bool SharePlan::learn_lags(double time, std::span<const ShareSample> samples) {
  lags_.resize(samples.size());
  const std::vector<double> before = std::exchange(latest_lags_, {});
  bool usual = true;
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    const double latest = samples[rank].lag_a_byte;
    // A rank is late if it was late in two rounds, and on time if it was on time in one.
    const double lag = before.empty() ? 0 : std::min(before[rank], latest);
    changed_ |= std::abs(lag - lags_[rank]) > kTogether * time;
    usual &= latest - lag <= kUnusual * time;
    lags_[rank] = lag;
    latest_lags_.push_back(latest);
  }
  late_ = *std::max_element(lags_.begin(), lags_.end()) > kTogether * time;
  return usual;
}

/// Learns from a round with the kept shares.
void SharePlan::learn(double time, std::span<const ShareSample> samples) {
  const bool anew = kept_time_ == 0 || std::exchange(changed_, false);
  kept_time_ = anew ? time : (kept_time_ + time) / 2;
  if (anew) {
    for (Patience& patience : patience_) patience.begin_again();
  }
  if (late_) return;  // the rates of the others say how fast the late rank sends
  const bool first = rates_.empty();
  rates_.resize(samples.size());
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    rates_[rank] = first ? samples[rank].rate : (rates_[rank] + samples[rank].rate) / 2;
  }
}

/// Rates of the links. Where a rank has been late from the start, they count as equal, and as fast
/// as calls with even shares say (algorithm: shares.h).
std::vector<double> SharePlan::link_rates() const {
  if (!rates_.empty()) return rates_;
  return std::vector<double>(lags_.size(), 2 * (1 - even_part_) / kept_time_);
}

void SharePlan::judge(double time) {
  const Trial trial = *std::exchange(trial_, std::nullopt);
  if (time > trial.limit * kept_time_) return patience(trial.kind).fail(kept_time_);
  kept_ = is_even(trial.weights) ? Weights(kept_.size(), even_part_) : trial.weights;
  kept_time_ = time;
  patience_ = {};
  if (trial.kind == Kind::faster) patience(Kind::evener).fail(time);  // they were evener before
}

std::optional<SharePlan::Trial> SharePlan::next_trial() {
  const Shares suited = Shares::for_speeds(link_rates(), leads());
  Weights weights;
  for (Rank rank = 0; rank < suited.ranks(); ++rank) {
    weights.push_back(static_cast<double>(suited.part(rank)) / Shares::kWhole);
  }
  const double gain = model(kept_) / model(weights);
  const bool tries_faster = patience(Kind::faster).over(kept_time_);
  const bool tries_evener = !is_even(kept_) && patience(Kind::evener).over(kept_time_);
  if (gain > kPromising && tries_faster) {
    return Trial{Kind::faster, 1 / (1 + kConfirmed * (gain - 1)), std::move(weights)};
  }
  if (!tries_evener) return std::nullopt;
  weights = kept_;
  for (double& weight : weights) weight = (weight + even_part_) / 2;
  return Trial{Kind::evener, kNotSlower, std::move(weights)};
}

}  // namespace tarpon
