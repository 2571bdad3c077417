#include "transport/rate/flow_choice.h"

#include <algorithm>
#include <bit>

#include "bpf/wire.h"

namespace tarpon {

FlowChoice::FlowChoice(std::uint32_t asked, std::uint32_t available)
    : tries_(asked == 0 && available >= kMany),
      flows_(std::bit_floor(std::clamp(asked, 1u, std::min(available, TARPON_MAX_FLOWS)))) {}

FlowChoice::Next FlowChoice::next() {
  if (!tries_) return {flows_, false};
  const std::uint32_t at = number_++ % kTrialOf;
  if (at >= kTrial) return {flows_, false};
  if (at == 0) {
    best_ = {};
    awaited_ = kTrial;
  }
  const std::uint32_t other = flows_ == 1 ? kMany : 1;
  return {at / kRun == 1 ? other : flows_, true};
}

void FlowChoice::ended(std::uint32_t flows, double bytes_per_second) {
  if (awaited_ == 0) return;
  double& best = best_[flows == 1 ? 0 : 1];
  best = std::max(best, bytes_per_second);
  if (--awaited_ == 0) flows_ = best_[1] >= kWorthwhile * best_[0] && best_[1] > 0 ? kMany : 1;
}

}  // namespace tarpon
