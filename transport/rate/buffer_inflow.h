// InflowRule::buffers: as much as receive buffers hold, whatever is lost. For comparison.
#pragma once

#include <cstdint>

#include "transport/rate/inflow.h"

namespace tarpon {

class BufferInflow final : public Inflow {
 public:
  explicit BufferInflow(std::uint64_t bytes) : bytes_(bytes) {}

 private:
  std::uint64_t steady_window() const override { return bytes_; }
  void judge_interval(const InflowCounts&) override {}

  const std::uint64_t bytes_;
};

}  // namespace tarpon
