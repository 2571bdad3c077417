// The calls of a simulated job, drawn from its plan and judged when they have ended. Private to
// the simulation's files.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/engine.h"
#include "tools/simulation.h"

namespace tarpon {

inline constexpr Duration kSimulationDeadline = 10s;

/// One collective call: what all ranks pass alike, and each rank's buffers.
struct SimulatedCall {
  std::uint32_t tag = 0;
  std::uint32_t number = 0;
  std::uint64_t count = 0;
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;
  bool in_place = false;
  std::vector<Time> submit_at;  // by rank
  std::vector<std::vector<std::byte>> inputs, outputs;
  std::vector<std::shared_ptr<PendingCall>> pending;  // by rank; null until submitted
};

/// What rank `rank` contributes to every element in bounded runs: the mean over a set of ranks then
/// tells the set (with 2^r two sets of 8 ranks can have one mean).
constexpr std::uint64_t coded_value(Rank rank) {
  return std::uint64_t{1} << (2 * rank);
}

/// In the order in which each rank submits them.
std::vector<SimulatedCall> plan_calls(const SimulationPlan& plan);

/// Adds the call's result bytes to the trace, counts it, and says which promises it broke.
void judge(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result);

}  // namespace tarpon
