#include "collectives/bounds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace tarpon {
namespace {

constexpr std::size_t kUsual = 9;     // samples: a rise is followed after five operations
constexpr std::size_t kSamples = 20;  // what was long lately is remembered for so many
constexpr Duration kUnit = 16us;      // of the header's stage_time
constexpr Duration kLeastBound = 1ms;
constexpr Duration kLeastPatience = 500us;  // scheduling delays more than short operations take
constexpr double kMostGrowth = 2;           // of an estimate by one sample that was cut off

// x loop (OptiReduce).
constexpr double kLateHigh = 0.001;
constexpr double kLateLow = 0.0001;
constexpr double kLatePackets = 3;  // fewer are chance
constexpr double kPatienceMost = 0.5;
constexpr double kPatienceLeast = 0.01;

// Margin of the per-byte bound: what was the longest lately and a little; widened while it cuts off
// more than the budget.
constexpr double kAboveLongest = 1.1;
constexpr double kCutHigh = 0.001;
constexpr double kCutLow = 0.0002;
constexpr double kMarginMost = 3.0;
constexpr double kMarginLeast = 0.10;
constexpr double kMarginLess = 0.99;  // with each operation that was not cut off

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Duration duration(double seconds) {
  constexpr double kMost = 1e9;  // what a Duration holds, and to spare
  return Duration(static_cast<std::int64_t>(std::min(seconds, kMost) * 1e9));
}

/// As a bound of a stage, of which there are two in `left`.
Duration bound_within(double seconds, Duration left) {
  const Duration most = left / 2;
  return std::clamp(duration(seconds), std::min(kLeastBound, most), most);
}

template <typename Values>
double quantile(const Values& values, double q) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

std::vector<double> latest(const std::deque<double>& samples) {
  const std::size_t count = std::min(samples.size(), kUsual);
  return {samples.end() - static_cast<std::ptrdiff_t>(count), samples.end()};
}

/// By this rank's bound, or by those of the peers.
bool cut_off(Closing closing) {
  return closing == Closing::bound || closing == Closing::given_up;
}

std::size_t class_of(std::uint64_t bytes) {
  return static_cast<std::size_t>(std::bit_width(std::max<std::uint64_t>(bytes, 1)) - 1);
}

}  // namespace

Bounds::Bounds(std::uint16_t world_size, bool x_loop) : world_size_(world_size), x_loop_(x_loop) {}

std::uint32_t Bounds::calibration(BoundRule rule) {
  if (rule == BoundRule::given) return 0;
  return rule == BoundRule::optireduce ? 20 : 5;
}

/// The class of that size, else the nearest known one, smaller ones first: their cost per byte
/// holds more overhead, which makes the bound rather too long.
const Bounds::SizeClass* Bounds::class_for(std::uint64_t bytes) const {
  const std::size_t own = class_of(bytes);
  for (std::size_t distance = 0; distance < learnt_.classes.size(); ++distance) {
    if (own >= distance && !learnt_.classes[own - distance].samples[1].empty()) {
      return &learnt_.classes[own - distance];
    }
    if (own + distance < learnt_.classes.size() &&
        !learnt_.classes[own + distance].samples[1].empty()) {
      return &learnt_.classes[own + distance];
    }
  }
  return nullptr;
}

std::optional<Bounds::Expected> Bounds::expected(std::uint64_t bytes) const {
  const SizeClass* known = class_for(bytes);
  if (known == nullptr) return std::nullopt;
  const double first = quantile(latest(known->samples[0]), 0.5);
  const double own = quantile(latest(known->samples[1]), 0.5);
  if (own <= 0) return std::nullopt;
  const double longest = quantile(known->samples[1], 1);
  std::vector<double> all{own};
  for (const double peer : known->peers) {
    if (peer > 0) all.push_back(peer);
  }
  const double whole = quantile(all, 0.5);
  const auto size = static_cast<double>(bytes);
  return Expected{std::min(1.0, first / own) * whole * size, whole * size, longest / own - 1};
}

std::optional<double> Bounds::percentile_of_calibration(std::uint64_t bytes) const {
  const SizeClass* known = class_for(bytes);
  if (known == nullptr || known->calibration.empty()) return std::nullopt;
  return quantile(known->calibration, 0.95) * static_cast<double>(bytes);
}

StageBounds Bounds::plan(BoundRule rule, std::optional<Duration> given, std::uint64_t bytes,
                         Duration left) const {
  StageBounds result;
  const std::optional<Expected> expected = this->expected(bytes);
  result.bound.fill(left / 2);
  if (rule == BoundRule::given) {
    if (given) result.bound.fill(std::min(*given, left / 2));
  } else if (rule == BoundRule::optireduce) {
    if (const auto whole = percentile_of_calibration(bytes)) {
      result.bound.fill(bound_within(*whole / 2, left));
    }
  } else if (expected) {
    const double margin =
        std::clamp(kAboveLongest * (1 + expected->longer) - 1, learnt_.margin, kMarginMost);
    const double whole = expected->whole * (1 + margin);
    const double first = whole - expected->whole + expected->first;
    result.bound[0] = bound_within(first, left);
    // What waited for a straggler in stage 1 goes out only then: half of the usual traffic.
    const double second = std::max(whole - first, whole / 2);
    result.bound[1] = bound_within(second, left);
  }
  if (!expected) return result;
  result.early[0] = std::max(kLeastPatience, duration(learnt_.patience * expected->first));
  result.early[1] = std::max(kLeastPatience, duration(learnt_.patience * expected->whole));
  const auto units = std::llround(expected->whole / seconds(kUnit));
  // What the field cannot hold is not said.
  if (units < 0xffff) result.stage_time = static_cast<std::uint16_t>(std::max(1ll, units));
  return result;
}

void Bounds::heard(Rank peer, std::uint64_t bytes, std::uint16_t stage_time) {
  if (stage_time == 0 || stage_time == 0xffff || bytes == 0 || peer >= world_size_) return;
  SizeClass& one = learnt_.classes[class_of(bytes)];
  one.peers.resize(world_size_);
  one.peers[peer] = stage_time * seconds(kUnit) / static_cast<double>(bytes);
}

void Bounds::learn(const BoundSample& sample, BoundRule rule) {
  if (sample.bytes == 0) return;
  note_silent(sample.silent);
  SizeClass& one = learnt_.classes[class_of(sample.bytes)];
  const auto size = static_cast<double>(sample.bytes);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    // What was cut off would have taken the rest of the way at the same speed.
    const double rest = cut_off(sample.closing[stage])
                            ? std::min(kMostGrowth, 1 / std::max(sample.received[stage], 1e-9))
                            : 1;
    std::deque<double>& samples = one.samples[stage];
    samples.push_back(seconds(sample.elapsed[stage]) * rest / size);
    if (samples.size() > kSamples) samples.pop_front();
  }
  if (one.calibration.size() < calibration(BoundRule::optireduce)) {
    one.calibration.push_back(seconds(sample.elapsed[1]) / size);
  }
  if (sample.bounded) adapt(sample, rule);
}

/// Before anything is learnt from an operation in which `ranks` were silent.
void Bounds::note_silent(std::uint64_t ranks) {
  const std::uint64_t still = silent_ & ranks;
  if (still == 0) before_ = ranks == 0 ? std::nullopt : std::optional(learnt_);
  silent_ = still == 0 ? ranks : still;
}

void Bounds::absent(Rank rank) {
  if ((silent_ >> rank & 1) == 0) return;
  learnt_ = *std::exchange(before_, std::nullopt);
  silent_ = 0;
}

/// OptiReduce's loop on x: doubled when too much came too late, or was lost; else slowly back.
void Bounds::adapt_patience(double trouble, double packets) {
  if (trouble > kLateHigh && trouble * packets >= kLatePackets) {
    learnt_.patience = std::min(kPatienceMost, 2 * learnt_.patience);
  } else if (trouble < kLateLow) {
    learnt_.patience = std::max(kPatienceLeast, learnt_.patience - 0.01);
  }
}

void Bounds::adapt(const BoundSample& sample, BoundRule rule) {
  const double lost = 1 - (sample.received[0] + sample.received[1]) / 2;
  if (x_loop_) adapt_patience(rule == BoundRule::optireduce ? lost : sample.late, sample.packets);
  const bool by_bound = cut_off(sample.closing[0]) || cut_off(sample.closing[1]);
  learnt_.cut = (7 * learnt_.cut + (by_bound ? lost : 0)) / 8;
  if (learnt_.cut > kCutHigh && by_bound) {
    learnt_.margin = std::min(kMarginMost, 1.5 * learnt_.margin);
  } else if (learnt_.cut < kCutLow) {
    learnt_.margin = std::max(kMarginLeast, kMarginLess * learnt_.margin);
  }
}

}  // namespace tarpon
