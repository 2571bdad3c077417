// InflowRule::incast: the dynamic incast of OptiReduce (NSDI'25), for comparison. A receiver says
// how many senders it takes at once: one more after an interval without loss, half after one with
// loss. Header field `incast_codec` carries that number. The window is what receive buffers hold.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/rate/inflow.h"

namespace tarpon {

class IncastInflow final : public Inflow {
 public:
  static constexpr std::uint32_t kMostSenders = 15;  // four bits

  /// `bytes`: what receive buffers hold. `senders`: of this rank.
  IncastInflow(std::uint64_t bytes, std::uint32_t senders)
      : bytes_(bytes),
        most_senders_(std::min(kMostSenders, senders)),
        advertised_(std::max(1u, most_senders_ / 2)) {}

  std::uint32_t advertised() const override { return advertised_; }
  std::uint32_t senders_at_once(std::uint32_t advertised) const override { return advertised; }

 private:
  std::uint64_t steady_window() const override { return bytes_; }
  void judge_interval(const InflowCounts& counts) override {
    const bool lossy = counts.credited.lost > 0 || counts.unasked.lost > 0;
    advertised_ = lossy ? std::max(1u, advertised_ / 2) : std::min(most_senders_, advertised_ + 1);
  }

  const std::uint64_t bytes_;
  const std::uint32_t most_senders_;
  std::uint32_t advertised_;
};

}  // namespace tarpon
