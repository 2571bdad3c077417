#include "transport/rate/timely.h"

#include <algorithm>

#include "transport/rate/pacer.h"

namespace tarpon {
namespace {

constexpr int kEchoes = 10;
constexpr Duration kLow = 25us;    // above the base
constexpr Duration kHigh = 250us;  // above the base
constexpr double kStep = 50e6 / 8;
constexpr double kBeta = 0.5;
constexpr double kWeight = 0.875;  // of the old gradient
constexpr int kFastAfter = 5;      // rises in a row

double ratio(Duration a, Duration b) {
  return static_cast<double>(a.count()) / static_cast<double>(std::max(b, Duration(1)).count());
}

}  // namespace

void Timely::round_trip(Duration rtt) {
  base_ = std::min(base_, rtt);
  best_ = std::min(best_, rtt);
  if (++echoes_ < kEchoes) return;
  update(best_);
  echoes_ = 0;
  best_ = Duration::max();
}

void Timely::update(Duration rtt) {
  const double step = ratio(rtt, base_) - ratio(previous_ == Duration{} ? rtt : previous_, base_);
  previous_ = rtt;
  gradient_ = kWeight * gradient_ + (1 - kWeight) * step;
  double next = bytes_per_second_;
  if (rtt < base_ + kLow || (rtt <= base_ + kHigh && gradient_ <= 0)) {
    next += kStep * (++rises_ > kFastAfter ? 5 : 1);
  } else {
    rises_ = 0;
    const double cut =
        rtt > base_ + kHigh ? 1 - ratio(base_ + kHigh, rtt) : std::min(1.0, gradient_);
    next *= 1 - kBeta * cut;
  }
  bytes_per_second_ = std::clamp(next, kMinLinkRate, line_rate_);
}

}  // namespace tarpon
