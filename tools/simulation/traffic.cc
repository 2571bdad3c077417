#include "tools/simulation/traffic.h"

namespace tarpon {

SimulatedTraffic::Route PlannedTraffic::route(Time now, Rank from, Rank to,
                                              std::span<const std::byte> packet) {
  if (from == plan_.victim && left_) {
    if (*left_ == 0) return {.lost = "crashed"};
    --*left_;
  }
  if (to == plan_.victim && deaf_) return {.lost = "crashed"};
  copy_(from, to, packet);
  if (healed_) return {};
  if (from == plan_.mask_from && to == plan_.mask_to && masked_ < 8) {
    if ((plan_.mask >> masked_++ & 1) != 0) return {.lost = "masked"};
  }
  const bool outwards = from == plan_.victim;
  const bool inwards = to == plan_.victim && has(plan_.on, FaultKind::partition);
  if ((outwards || inwards) && plan_.cut.contains(now)) return {.lost = "cut"};
  if (to == plan_.victim && plan_.jam.contains(now)) return {.not_before = plan_.jam.to};
  return {};
}

}  // namespace tarpon
