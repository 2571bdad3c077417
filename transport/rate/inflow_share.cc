#include "transport/rate/inflow_share.h"

#include <algorithm>
#include <cmath>

namespace tarpon {
namespace {

constexpr double kSteps = 48;      // in the averages
constexpr double kSure = 2;        // standard errors: chance alone reaches them once in 40 times
constexpr double kMostStep = 0.3;  // of the window's logarithm: after a larger step too much is new
constexpr double kMost = 1.5;      // of the step: a larger change is no answer to our window

constexpr std::uint32_t kSpell = 32;  // rates

}  // namespace

void LatelyFastest::observe(double rate) {
  if (++observed_ > kSpell) {
    observed_ = 1;
    before_ = now_;
    now_ = 0;
  }
  now_ = std::max(now_, rate);
}

void InflowShare::observe(double window, double bytes_per_second, bool steady) {
  // The first interval after a change still has packets that were sent before it.
  if (!steady || !settled_) {
    settled_ = steady;
    return;
  }
  const Settled now{std::log(window), std::log(bytes_per_second)};
  if (known_) {
    learn(now.window - before_.window, now.rate - before_.rate);
  }
  before_ = now;
  known_ = true;
  low_ = !low_;
  settled_ = false;
}

void InflowShare::learn(double step, double answer) {
  if (std::abs(step) > kMostStep) return;
  const double most = kMost * std::abs(step);
  const double taken = std::clamp(answer, -most, most);
  const double error = taken - others() * step;
  steps_ = std::min(steps_ + 1, kSteps);
  products_ += (step * taken - products_) / steps_;
  squares_ += (step * step - squares_) / steps_;
  errors_ += (error * error - errors_) / steps_;
}

double InflowShare::share() const {
  const double standard_error = std::sqrt(errors_ / squares_ / steps_);
  return 1 - std::clamp(others() - kSure * standard_error, 0.0, 1.0);
}

}  // namespace tarpon
