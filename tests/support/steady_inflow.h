// An Inflow whose window stays as it is, whatever is lost.
#pragma once

#include <cstdint>

#include "transport/rate/inflow.h"

namespace tarpon::testing_support {

class SteadyInflow final : public Inflow {
 public:
  explicit SteadyInflow(std::uint64_t bytes) : bytes_(bytes) {}

 private:
  std::uint64_t steady_window() const override { return bytes_; }
  void judge_interval(const InflowCounts&) override {}

  const std::uint64_t bytes_;
};

}  // namespace tarpon::testing_support
