// One seeded run of a whole job in virtual time: N engines in one thread over the simulated
// network, with faults, judged after every call. A seed fixes everything; the same seed gives the
// same trace.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/ports/fault_port.h"
#include "transport/time.h"

namespace tarpon {

/// What a seed stands for; printed so that a failure explains itself.
struct SimulationPlan {
  std::uint64_t seed = 0;
  std::uint16_t ranks = 2;
  std::uint32_t slot_bytes = 1408;
  std::uint32_t tags = 1;
  std::uint32_t calls_per_tag = 1;
  std::uint64_t most_elements = 1;
  bool bounded = false;
  Duration bound = 5ms;  // bounded runs, per stage
  Duration skew = 0ms;   // ranks submit up to this much apart
  FaultOptions faults;   // per receiving rank
  std::uint32_t frames = 64;
  std::uint64_t receive_bytes = 1 << 20;
  bool gathers = true;
};

/// The plan of a seed: every fault on or off, sizes and shapes drawn from it.
SimulationPlan plan_simulation(std::uint64_t seed);

/// One line, for humans.
std::string describe(const SimulationPlan& plan);

struct SimulationResult {
  std::uint64_t trace_hash = 0;         // over every packet and every result byte
  std::vector<std::string> violations;  // broken promises; empty when the run is good
  Duration virtual_time{};
  std::uint64_t packets = 0;
  std::uint64_t calls = 0;    // completed calls, over all ranks
  std::uint64_t partial = 0;  // of them with something missing
  FaultStatistics faults;
};

/// Runs the plan. The oracles:
///   every call ends by its deadline, bounded ones by their bounds;
///   exact results equal the reduction in owner, successor, ..., predecessor order, bit by bit;
///   bounded results equal the reduction over exactly the contributors that the report names.
/// `wrap`, when given, may replace the port of each rank: a test plants a defect there to see that
/// the oracles catch it.
using PortWrapper = std::function<std::unique_ptr<Port>(Rank, std::unique_ptr<Port>)>;
SimulationResult run_simulation(const SimulationPlan& plan, const PortWrapper& wrap = nullptr);

}  // namespace tarpon
