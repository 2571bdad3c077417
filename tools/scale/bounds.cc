#include "tools/scale/bounds.h"

#include <algorithm>

#include "tools/scale/quantiles.h"

namespace tarpon::scale {
namespace {

constexpr double kOld = 0.95;

Duration scaled(double ns, double factor) {
  return Duration(static_cast<std::int64_t>(ns * factor));
}

}  // namespace

Bounds::Bounds(std::optional<Duration> fixed) : calibrations_left_(fixed ? 0 : kCalibration) {
  if (!fixed) return;
  bound_.fill(*fixed);
  early_ns_.fill(static_cast<double>(fixed->count()));
}

Limits Bounds::next() const {
  Limits limits;
  limits.exact = calibrating();
  limits.bound = bound_;
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    limits.early_wait[stage] = scaled(early_ns_[stage], wait_share_);
  }
  return limits;
}

void Bounds::settle() {
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    bound_[stage] = scaled(static_cast<double>(median(typical_[stage]).count()), kMargin);
    early_ns_[stage] = static_cast<double>(median(closed_[stage]).count());
  }
}

void Bounds::learn(const BoundedOutcome& outcome) {
  if (calibrating()) {
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      typical_[stage].push_back(outcome.stages[stage].typical);
      closed_[stage].push_back(outcome.stages[stage].closed);
    }
    if (--calibrations_left_ == 0) settle();
    return;
  }
  double cut = 0;
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    const auto sample = static_cast<double>(outcome.stages[stage].closed.count());
    early_ns_[stage] = kOld * early_ns_[stage] + (1 - kOld) * sample;
    cut = std::max(cut, outcome.stages[stage].cut_early);
  }
  if (cut > 0.001) wait_share_ = std::min(0.50, wait_share_ * 2);
  if (cut < 0.0001) wait_share_ = std::max(0.01, wait_share_ - 0.01);
}

}  // namespace tarpon::scale
