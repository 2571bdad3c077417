// The result of a coded call in plain code, in double precision: what results are checked against.
//
// Shared by the checks of the tool, the simulator and the tests, and independent of the codec's
// kernels, whose signs and layout it shares by their definitions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "collectives/allreduce.h"

namespace tarpon {

/// What a rank contributes to an element.
using Contribution = std::function<float(Rank rank, std::uint64_t index)>;

struct CodedExpectation {
  std::vector<double> values;
  std::vector<double> tolerances;  // per element: what rounding in single precision may change
};

/// The reduction over exactly the contributors that `report` names for each position, decoded as
/// `rank` has to. Blocks without a contributor hold what `missing` says; if it is nullopt, any
/// value is right there. REQUIRES: report.coded; sum or avg.
CodedExpectation coded_expectation(const Report& report, std::uint32_t world, Rank rank,
                                   ReduceOp function, std::optional<MissingFill> missing,
                                   const Contribution& contribution);

}  // namespace tarpon
