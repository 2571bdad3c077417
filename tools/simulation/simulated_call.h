// The calls of a simulated job, drawn from its plan and judged when they have ended. Private to
// the simulation's files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/engine/engine.h"
#include "tools/reference/half_types.h"
#include "tools/simulation/simulation.h"

namespace tarpon {

inline constexpr Duration kSimulationDeadline = 10s;

/// Calls after healing, of tag 0.
inline constexpr std::uint32_t kLiveCalls = 3;

/// One collective call: what all ranks pass alike, and each rank's buffers.
struct SimulatedCall {
  std::uint32_t tag = 0;
  std::uint32_t number = 0;  // of the operation, in its tag
  std::uint32_t index = 0;   // in its sequence: the number, but where each call has a fresh tag
  std::uint64_t count = 0;
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;
  MissingFill missing = MissingFill::zero;
  bool in_place = false;
  bool bounded = false;  // and runs so; contributions are coded values
  Algorithm algorithm = Algorithm::tar;
  std::uint32_t group_size = 0;
  Rank late_rank = 0;
  Shares shares;
  BoundRule bound_rule = BoundRule::automatic;
  bool mismatched = false;  // the victim asks for something else
  bool refused = false;     // by the victim's engine, for its arguments
  bool late = false;        // the victim comes when the others' deadline has passed
  Duration deadline = kSimulationDeadline;
  bool live = false;                   // made after healing
  bool nonfinite = false;              // the victim's input holds NaN or infinity
  std::vector<Time> submit_at;         // by rank; of live calls not before healing
  std::vector<Time> submitted, ended;  // by rank, the network's time; kNever: not yet
  std::vector<Duration> worked;        // by rank: time of pieces of any call, while this one ran
  bool served_in_vain = false;         // the victim left, and stopped to serve at its deadline
  std::vector<Time> told_left;  // by rank: that the victim left, without this call; kNever: no
  std::vector<std::vector<std::byte>> inputs, outputs;
  std::vector<std::shared_ptr<PendingCall>> pending;  // by rank; null until submitted
};

/// What rank `rank` contributes to every element of bounded calls: the mean over a set of ranks
/// then tells the set (with 2^r two sets of 8 ranks can have one mean).
constexpr std::uint64_t coded_value(Rank rank) {
  return std::uint64_t{1} << (2 * rank);
}

/// The same in elements of T. Half types have fewer bits: sums of the ranks' powers of two fit
/// float16 for up to 11 ranks.
template <typename T>
T coded_as(Rank rank) {
  return static_cast<T>(kIsHalf<T> ? std::uint64_t{1} << rank : coded_value(rank));
}

/// In the order in which each rank submits them; live ones last: after a crash or an eviction an
/// exact one, for exact plans, then bounded ones.
std::vector<SimulatedCall> plan_calls(const SimulationPlan& plan);

/// What a bounded call has. After the faults everything arrives, given time: slow links and small
/// buffers remain.
Duration bound_of(const SimulationPlan& plan, const SimulatedCall& call);

/// What all ranks ask for alike that decides what an exact call sends and adds up.
AllreduceArguments exact_arguments(const SimulatedCall& call);

/// What `rank` asks for.
AllreduceArguments arguments_of(const SimulationPlan& plan, SimulatedCall& call, Rank rank);

/// Names the call at `rank` in a broken promise.
std::string describe(const SimulatedCall& call, Rank rank);

/// Whether the output is defined.
bool has_result(const Report& report);

/// Whether rank `rank` refused just those packets that say by themselves that they are not for it.
void judge_refusals(Rank rank, const EndpointCounters& got, const EndpointCounters& should,
                    SimulationResult& result);

/// Whether rank `rank` has freed all that it held for calls.
void judge_memory(Rank rank, const EndpointMemory& memory, SimulationResult& result);

/// What is wrong with what rank `rank` says of each rank: bytes expected and received, ages,
/// contributors, void shards, operations missed. Empty when nothing is.
std::string judge_accounts(const SimulationPlan& plan, const SimulatedCall& call, Rank rank);

/// Adds the call's result bytes to the trace, counts it, and says which promises it broke.
void judge(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result);

/// What the elements of the outputs have to be: exact calls the reduction over all ranks, bounded
/// ones over the contributors that the report names, filled where it names nobody.
void judge_results(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result);

/// The same over all its ranks: what they have of an element is the same, or one has nothing of it;
/// and where ranks may only be late, no owner alone has its shard.
void judge_replicas(const SimulationPlan& plan, const SimulatedCall& call,
                    SimulationResult& result);

}  // namespace tarpon
