// One seeded run of a whole job in virtual time: N engines in one thread over the simulated
// network, with faults, judged after every call. A seed fixes everything; the same seed gives the
// same trace.
//
// A run has two phases. Safety: the calls of the plan, with its faults; promises hold, whatever
// happens. Liveness: everything is healed, and three more calls have to be complete.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/mechanisms.h"
#include "tools/simulation_faults.h"
#include "transport/counters.h"
#include "transport/endpoint.h"
#include "transport/links/fabric.h"
#include "transport/ports/fault_port.h"
#include "transport/ports/simulated_port.h"
#include "transport/time.h"

namespace tarpon {

/// From `from` on, before `to`; empty by default.
struct Window {
  Time from{};
  Time to{};
  bool contains(Time now) const { return from <= now && now < to; }
  Duration length() const { return to - from; }
};

/// What a seed stands for; printed so that a failure explains itself.
struct SimulationPlan {
  std::uint64_t seed = 0;
  std::uint16_t ranks = 2;
  std::uint32_t slot_bytes = 1408;
  std::uint32_t tags = 1;
  std::uint32_t calls_per_tag = 1;
  std::uint64_t most_elements = 1;
  bool bounded = false;  // but for calls that calibrate bounds
  BoundRule bound_rule = BoundRule::given;
  Duration bound = 5ms;  // of bounded calls, per stage, where it is given
  Duration skew = 0ms;   // ranks submit up to this much apart
  std::uint32_t frames = 64;
  std::uint64_t receive_bytes = 1 << 20;
  bool gathers = true;
  std::uint32_t flows = 1;  // of each rank to each other
  Mechanisms mechanisms;

  FaultSet on;                                        // which of the following are
  FaultOptions faults;                                // per receiving rank
  std::optional<FabricOptions> links = std::nullopt;  // tail, slow_link, policer, ...
  Rank victim = 0;  // of partition, jam, pause, slow_rank, clocks, mismatch, abort, crash,
                    // broken_port, evict, nonfinite
  Rank mask_from = 0, mask_to = 0;
  std::uint8_t mask = 0;  // bit i: the i-th packet from mask_from to mask_to is lost
  Window cut;             // partition, one_way
  Window jam;
  Window pause;
  Duration slow_period{};  // slow_rank: the victim is driven at multiples of it
  Time jump_at = kNever;   // clock_jump
  Duration jump{};
  std::int64_t drift_ppm = 0;
  std::uint32_t mismatched_call = 0;  // of tag 0
  Time abort_at = kNever;
  std::vector<std::pair<Rank, Window>> pauses = {};  // beside the faults, of any rank: from a trace
  std::uint32_t nonfinite_call = 0;
  double nonfinite_value = 0;
  double hostile = 0;               // share of the packets that have a forged twin
  Time crash_at = kNever;           // of crash and broken_port
  std::uint32_t crash_packets = 0;  // that the victim still sends then
  Duration detection{};             // after the crash the first survivor is told
  Duration detection_spread{};      // from the first to the last of them
  bool restarts = false;            // a new incarnation comes up when all have been told
  bool port_breaks = false;         // at that time, in place of a crash without a word

  Time evict_at = kNever;
  Duration evict_spread{};  // from the first to the last rank that is told

  /// More calls than a tag may have open: they wait for one another.
  bool queues() const { return calls_per_tag > EndpointOptions{}.window; }

  /// The victim's process ends.
  bool crashes() const { return crash_at != kNever; }

  /// When `rank` is told of the eviction; kNever: never.
  Time evicted_at(Rank rank) const {
    return evict_at == kNever ? kNever : evict_at + evict_spread * rank / ranks;
  }

  /// When `rank` is told of the crash; kNever: never.
  Time told_at(Rank rank) const {
    if (crash_at == kNever) return kNever;
    return crash_at + detection + detection_spread * rank / ranks;
  }
};

/// The plan of a seed: sizes and shapes drawn from it, each fault on or off, none but those of
/// `allowed`. Leaving faults out changes nothing else.
SimulationPlan plan_simulation(std::uint64_t seed, const FaultSet& allowed = all_faults());

/// One line, for humans.
std::string describe(const SimulationPlan& plan);

inline constexpr std::size_t kStatuses = static_cast<std::size_t>(Status::evicted) + 1;

struct SimulationResult {
  std::uint64_t trace_hash = 0;         // over every packet and every result byte
  std::vector<std::string> violations;  // broken promises; empty when the run is good
  Duration virtual_time{};
  std::uint64_t packets = 0;
  std::uint64_t calls = 0;    // ended calls, over all ranks
  std::uint64_t partial = 0;  // of them with something missing
  std::array<std::uint64_t, kStatuses> statuses{};
  EndpointCounters counters;  // of all ranks; only `dropped` is summed
  FaultStatistics faults;
};

/// Runs the plan. The oracles:
///   every call ends by its deadline, bounded ones by their bounds, also while one rank is paused;
///   exact results equal the reduction in owner, successor, ..., predecessor order, bit by bit;
///   bounded results equal the reduction over exactly the contributors that the report names, or
///   are NaN as a whole on every rank that heard of NaN or infinity in an input; others have
///   nothing of that rank; a status has a reason among the faults, and blames nobody but the victim
///   where only it can be at fault; calls after healing are complete; another job on the same
///   network gets its own results;
///   what a report says of each rank (bytes, ages, contributors, void shards, operations missed)
///   agrees with the schedule and with the loss by range;
///   after a crash or an eviction exact calls end as peer_dead or evicted, those made later at
///   once, and bounded ones go on with the others alone; whatever comes of that rank is refused,
///   and counted.
struct SimulationHooks {
  /// May replace the port of each rank: a test plants a defect there to see that the oracles catch
  /// it.
  std::function<std::unique_ptr<Port>(Rank, std::unique_ptr<Port>)> wrap = nullptr;
  /// Told what becomes of each packet of the job: SimulatedTraffic's words, and those of FaultPort.
  std::function<void(Time, Rank from, Rank to, std::span<const std::byte>, std::string_view fate)>
      event = nullptr;
};
SimulationResult run_simulation(const SimulationPlan& plan, const SimulationHooks& hooks = {});

}  // namespace tarpon
