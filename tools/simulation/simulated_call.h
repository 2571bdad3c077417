// The calls of a simulated job, drawn from its plan and judged when they have ended. Private to
// the simulation's files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/engine/engine.h"
#include "tools/reference/half_types.h"
#include "tools/simulation/simulation.h"
#include "transport/pair_tag.h"

namespace tarpon {

inline constexpr Duration kSimulationDeadline = 10s;

/// Calls after healing, of tag 0.
inline constexpr std::uint32_t kLiveCalls = 3;

/// One collective call: what all ranks pass alike, and each rank's buffers.
struct SimulatedCall {
  std::uint32_t tag = 0;
  std::uint32_t number = 0;  // of the operation, in its tag
  std::uint32_t index = 0;   // in its sequence; equals `number` unless tags are fresh
  std::uint64_t count = 0;
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;
  MissingFill missing = MissingFill::zero;
  bool in_place = false;
  bool bounded = false;  // runs so; contributions are coded values
  /// Of a collective other than AllReduce, or of a message, as each rank has them; empty: an
  /// AllReduce. Each rank's buffers have `count` elements, whatever part of them it uses.
  std::vector<CollectiveParts> parts;
  Algorithm algorithm = Algorithm::tar;
  std::uint32_t group_size = 0;
  Rank late_rank = 0;
  Shares shares;
  bool learns = false;              // its shares are learnt
  bool victim_learns = false;       // also at the victim
  std::optional<Shares> of_victim;  // the victim missed measurements: its shares are these
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
  std::vector<Time> told_left;  // by rank: told that the victim left without this call; kNever: not
  std::vector<std::vector<std::byte>> inputs, outputs;
  std::vector<std::shared_ptr<PendingCall>> pending;  // by rank; null until submitted
  std::uint64_t behind =
      0;  // bit r: rank r knew when it submitted the call that another had ended it

  /// Whether `rank` makes the call: of a message only its sender and its receiver do.
  bool takes_part(Rank rank) const { return (ranks_of_tag(tag) & bit(rank)) != 0; }

  /// Whether it is a bounded reduce_scatter or all_gather.
  bool has_one_stage() const { return bounded && !parts.empty(); }
  /// Whether it is a bounded all_gather.
  bool gathers_parts() const {
    return has_one_stage() && parts[0].collective == Collective::all_gather;
  }

  /// The elements of the bucket that the output of `rank` has.
  Range output_of(Rank rank) const {
    return parts.empty() ? Range{0, count} : parts[rank].output(rank);
  }

  /// Whether the call runs exact only because its bound is not known yet.
  bool calibrates() const { return bound_rule == BoundRule::optireduce && !bounded; }
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

/// The calls in the order in which each rank submits them. Live ones come last: after a crash or an
/// eviction an exact one, for exact plans, then bounded ones.
std::vector<SimulatedCall> plan_calls(const SimulationPlan& plan);

/// The bound of a bounded call. Calls after the faults get a long one: everything arrives in time,
/// but slow links and small buffers remain.
Duration bound_of(const SimulationPlan& plan, const SimulatedCall& call);

/// The arguments, alike on all ranks, that decide what an exact call sends and adds up.
AllreduceArguments exact_arguments(const SimulatedCall& call);

/// The arguments of `rank`.
CallArguments arguments_of(const SimulationPlan& plan, SimulatedCall& call, Rank rank);

/// Those of a collective other than AllReduce, or of a message, with buffers of `call.count`
/// elements. REQUIRES: call.parts; the rank takes part.
CallArguments collective_arguments(const SimulatedCall& call, std::uint32_t ranks, Rank rank,
                                   const std::byte* input, std::byte* output);

/// Names the call at `rank` in a broken promise.
std::string describe(const SimulatedCall& call, Rank rank);

/// Checks that rank `rank` refused exactly the packets that show by themselves that they are not
/// for it.
void judge_refusals(Rank rank, const EndpointCounters& got, const EndpointCounters& should,
                    SimulationResult& result);

/// Checks that rank `rank` has freed all that it held for calls.
void judge_memory(Rank rank, const EndpointMemory& memory, SimulationResult& result);

/// Returns what is wrong in the entries for each rank in the report of rank `rank`: bytes expected
/// and received, ages, contributors, void shards, operations missed. Empty if nothing is.
std::string judge_accounts(const SimulationPlan& plan, const SimulatedCall& call, Rank rank);

/// Checks which ranks the report of `rank` blames. REQUIRES: the call has ended there.
void judge_blame(const SimulationPlan& plan, const SimulatedCall& call, Rank rank,
                 SimulationResult& result);

/// Adds the call's result bytes to the trace, counts it, and says which promises it broke.
void judge(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result);

/// Checks the elements of the outputs. Exact calls hold the reduction over all ranks, bounded ones
/// that over the contributors that the report names, and the fill where it names none.
void judge_results(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result);

/// Compares the call's ranks. Two ranks must have the same contributors of an element, unless one
/// has none. If ranks may only be late, no owner may be the only rank with its shard.
void judge_replicas(const SimulationPlan& plan, const SimulatedCall& call,
                    SimulationResult& result);

}  // namespace tarpon
