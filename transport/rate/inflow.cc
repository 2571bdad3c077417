#include "transport/rate/inflow.h"

namespace tarpon {
namespace {

constexpr std::uint64_t kInterval = 1024;     // packets: 0.5 % of loss are five of them
constexpr std::uint64_t kSlowInterval = 128;  // packets, after kLongestInterval
constexpr Duration kLongestInterval = 20ms;

}  // namespace

void Inflow::rest(Time now) {
  if (!busy_) return;
  counts_.busy += now - busy_since_;
  counts_.rested = true;
  busy_ = false;
  since_rest_ = 0;
}

void Inflow::judge(Time now) {
  if (!busy_) {
    busy_ = true;
    busy_since_ = now;
  }
  const Duration busy = counts_.busy + (now - busy_since_);
  const std::uint64_t seen = counts_.credited.seen();
  if (seen < kInterval && (seen < kSlowInterval || busy < kLongestInterval)) return;
  counts_.busy = busy;
  judge_interval(counts_);
  counts_ = {};
  counts_.rested = since_rest_ < steady_window();
  busy_since_ = now;
}

}  // namespace tarpon
