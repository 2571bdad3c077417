#include "transport/rate/inflow_pace.h"

#include <algorithm>

#include "transport/rate/pacer.h"

namespace tarpon {
namespace {

constexpr double kBelowDelivered = 0.97;
constexpr double kLeastCut = 0.3;       // of the rate
constexpr double kBelowCeiling = 0.99;  // of what a rate that dropped packets delivered
constexpr double kSurelyBelow = 0.95;   // of the rate that a policer seemed to have
constexpr double kUncured = 0.5;        // of the loss before
constexpr double kProbe = 1.0025;       // factor on a rate above kNearCeiling of the ceiling
constexpr double kProbeFaster = 1.05;   // on a lower rate, or without a ceiling
constexpr double kNearCeiling = 0.9;
constexpr std::uint32_t kCarefulProbes = 24;  // clean intervals in a row
constexpr std::uint32_t kUnusedAfter = 16;
constexpr Duration kLateness = 200us;  // of a wake-up; up to so much is made good

}  // namespace

void InflowPace::begin(double delivered, double loss) {
  bytes_per_second_ = std::max(kMinLinkRate, kBelowDelivered * delivered);
  begun_at_ = bytes_per_second_;
  loss_before_ = loss;
  clean_ = 0;
  unused_ = 0;
}

bool InflowPace::slow_down(double loss) {
  clean_ = 0;
  unused_ = 0;
  if (loss > 2 * loss_before_) {  // it got worse: this is another limit than the one met before
    begun_at_ = bytes_per_second_;
    loss_before_ = loss;
  }
  const bool below = bytes_per_second_ < kSurelyBelow * begun_at_ * (1 - loss_before_);
  if (below && loss > kUncured * loss_before_) {
    end();
    return true;
  }
  ceiling_ = bytes_per_second_ * std::max(kLeastCut, 1 - loss);
  bytes_per_second_ = std::max(kMinLinkRate, kBelowCeiling * ceiling_);
  return false;
}

/// Raises the rate in large steps, to leave a rate soon that was set too low in a bad moment; near
/// a rate that dropped packets, in small ones.
void InflowPace::speed_up(double delivered) {
  if (++clean_ > kCarefulProbes) ceiling_ = 0;
  const bool near = ceiling_ > 0 && bytes_per_second_ > kNearCeiling * ceiling_;
  bytes_per_second_ *= near ? kProbe : kProbeFaster;
  unused_ = delivered < bytes_per_second_ / 2 ? unused_ + 1 : 0;
  if (unused_ >= kUnusedAfter) end();
}

void InflowPace::granted(Time now, std::uint64_t bytes) {
  if (!on()) return;
  const double nanoseconds = 1e9 * static_cast<double>(bytes) / bytes_per_second_;
  next_grant_ =
      std::max(next_grant_, now - kLateness) + Duration(static_cast<std::int64_t>(nanoseconds));
}

}  // namespace tarpon
