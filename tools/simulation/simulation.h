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
#include "tools/simulation/faults.h"
#include "tools/simulation/simulated_hosts.h"
#include "transport/counters.h"
#include "transport/endpoint.h"
#include "transport/ports/fault_port.h"
#include "transport/ports/sealed_port.h"
#include "transport/recorder.h"
#include "transport/simulated/fabric.h"
#include "transport/simulated/simulated_port.h"
#include "transport/time.h"

namespace tarpon {

/// From `from` on, before `to`; empty by default.
struct Window {
  Time from{};
  Time to{};
  bool contains(Time now) const { return from <= now && now < to; }
  Duration length() const { return to - from; }
};

/// What forged packets achieve that pass every check without a secret: their source address,
/// cookie, check sum and fields are those of a rank. Only keyed packets would prevent the last two
/// groups.
enum class LieGroup : std::uint8_t {
  refused,    // no rank sends them at this place or time: dropped and counted, change nothing
  numbering,  // `closed_below` and operation numbers that jump: have to change nothing
  control,    // well-formed feedback and news: may cost a call, never falsify a result
  data,       // DATA ahead of the genuine one with another payload: falsifies a result
};

/// What is wrong with the arguments of a call that the victim's engine refuses.
enum class WrongArgument : std::uint8_t {
  deadline,  // 0
  bound,     // negative
  function,  // unknown
  input,     // null, where the call has elements
  count,     // more than 32 bits can number
  overlap,   // of input and output, where the call has elements
  kinds      // how many there are
};

/// How the victim's arguments differ from those of the others.
enum class Difference : std::uint8_t {
  count,     // one element less, where the call has some
  function,  // another reduction, of calls that can be bounded the other one that can
  type,      // an element type of the same width: bounded calls run exact at the victim
  mode,      // exact, where the others are bounded
  kinds      // how many there are
};

/// Seeds from here on draw the algorithms of exact calls. All calls of lower ones run TAR, so that
/// the seeds which are kept as tests stay what they were.
inline constexpr std::uint64_t kFirstSeedOfAlgorithms = 20'000'000;

/// Seeds from here on draw shares that are learnt too (share_learner.h), and multicast.
inline constexpr std::uint64_t kFirstSeedOfLearntShares = 30'000'000;
inline constexpr std::uint64_t kFirstSeedOfMulticast = 30'000'000;

/// Seeds from here on let ranks of a host share memory in half of the plans.
inline constexpr std::uint64_t kFirstSeedOfHosts = 40'000'000;

/// Seeds from here on draw the other collectives too, in place of exact AllReduces that do not go
/// over hosts.
inline constexpr std::uint64_t kFirstSeedOfCollectives = 50'000'000;

/// Seeds from here on draw bounded all_gathers, in place of bounded AllReduces.
inline constexpr std::uint64_t kFirstSeedOfBoundedGathers = 60'000'000;

/// Seeds from here on have a secret in 70 % of the plans: packets are keyed or sealed, and forged
/// ones may change nothing.
inline constexpr std::uint64_t kFirstSeedOfSecrets = 70'000'000;

/// Seeds from here on have a secret in all plans; most have a part and a successor of the job, and
/// a stranger in place of the forger of FaultKind::hostile (stranger.h).
inline constexpr std::uint64_t kFirstSeedOfStrangers = 80'000'000;

/// What a seed stands for; printed so that a failure explains itself.
struct SimulationPlan {
  std::uint64_t seed = 0;
  std::uint16_t ranks = 2;
  std::uint32_t slot_bytes = 1408;
  tarpon_integrity integrity = TARPON_INTEGRITY_CRC32C;  // or keyed, or sealed
  bool has_secret() const { return integrity != TARPON_INTEGRITY_CRC32C; }
  /// Of a full packet: payload, and its tag if there is one.
  std::uint32_t payload_bytes() const { return slot_bytes + (has_secret() ? TARPON_TAG_BYTES : 0); }
  /// With a secret: SealOptions::packets_of_key_shift.
  unsigned packets_of_key_shift = SealOptions{}.packets_of_key_shift;
  /// The ranks of a communicator that is split from the job; 0: none is.
  std::uint64_t part = 0;
  /// The ranks of a job that takes the place of this one when its faults are over, as shrink() and
  /// rejoin() make it; 0: none does.
  std::uint64_t successor = 0;
  bool same_cookie = false;     // of the successor: its key alone is another one
  bool draws_stranger = false;  // `hostile` is that of a Stranger
  std::uint32_t tags = 1;
  std::uint32_t calls_per_tag = 1;
  std::uint64_t most_elements = 1;
  bool fresh_tags = false;  // each call has a tag of its own: `tags` such sequences
  bool bounded = false;     // but for calls that calibrate bounds
  BoundRule bound_rule = BoundRule::automatic;
  Duration bound = 10ms;  // of bounded calls, where it is given
  /// BoundRule::learnt: the time of the calls that all ranks have learnt from before the first one.
  /// Zero: none.
  Duration usual{};
  bool limited = true;         // `bound` is the most that a learnt bound may be
  std::uint64_t late_ranks{};  // bit r: rank r makes calls late
  Duration lateness{};         // at most, in each call by itself
  MissingFill missing = MissingFill::zero;
  Duration skew = 0ms;  // ranks submit up to this much apart
  std::uint32_t frames = 64;
  std::uint64_t receive_bytes = 1 << 20;
  bool gathers = true;
  std::uint32_t flows = 1;        // of each rank to each other
  bool draws_algorithms = false;  // of exact calls; else all run TAR
  bool multicast = false;         // of messages that are alike for all peers
  /// HostShape::place_bytes: calls may go by hosts; 0: no ranks share a host.
  bool draws_collectives = false;  // exact calls may be other collectives, bounded ones
                                   // reduce_scatters
  bool draws_bounded_gathers = false;
  std::uint32_t host_place_bytes = 0;
  std::vector<std::uint8_t> hosts = {};  // by rank: its host
  hosts::HostLayout layout() const { return hosts::HostLayout::by(hosts); }
  hosts::HostShape host_shape() const { return SimulatedHosts::shape(ranks, host_place_bytes); }
  bool learns_shares = false;  // all exact calls run TAR with shares that change
  Mechanisms mechanisms;

  FaultSet on;                                        // which of the following faults are on
  FaultOptions faults;                                // per receiving rank
  std::optional<FabricOptions> links = std::nullopt;  // tail, slow_link, policer, ...
  Rank victim = 0;  // of partition, jam, pause, slow_rank, clocks, mismatch, abort, crash,
                    // broken_port, evict, nonfinite, refuse, leave,
                    // late_call, no_memory
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
  Difference difference = Difference::count;
  std::uint32_t refused_call = 0;  // of each tag
  double no_memory = 0;            // share of the allocations that fail
  std::uint32_t late_call = 0;     // of each tag
  Duration late_deadline{};        // of that call, if it is exact
  Duration late_by{};              // the victim; later calls of all ranks come after that
  WrongArgument wrong_argument = WrongArgument::deadline;
  Time abort_at = kNever;
  std::vector<std::pair<Rank, Window>> pauses = {};  // beside the faults, of any rank: from a trace
  std::uint32_t nonfinite_call = 0;
  double nonfinite_value = 0;
  double hostile = 0;  // share of the packets that have a forged twin: LieGroup::refused
  double lies = 0;     // share that have one of `lie_group`
  LieGroup lie_group = LieGroup::numbering;
  Time crash_at = kNever;           // of crash and broken_port
  std::uint32_t crash_packets = 0;  // that the victim still sends then
  Duration detection{};             // after the crash the first survivor is told
  Duration detection_spread{};      // from the first to the last of them
  bool restarts = false;            // a new incarnation comes up when all have been told
  bool port_breaks = false;         // at crash_at its port breaks, in place of a silent crash

  Time evict_at = kNever;
  Duration evict_spread{};  // from the first to the last rank that is told

  Time leave_at = kNever;
  Duration leave_news{};    // how long the control mesh takes for each such news
  Duration leave_spread{};  // from the first to the last rank that is told

  /// Whether a tag has more calls than may be open, so that they wait for one another.
  bool queues() const { return calls_per_tag > EndpointOptions{}.window && !fresh_tags; }

  /// Whether the victim's process ends.
  bool crashes() const { return crash_at != kNever; }

  /// How long ranks are cut off, jammed or stopped, together.
  Duration troubles() const {
    Duration sum = cut.length() + jam.length() + pause.length();
    for (const auto& [rank, window] : pauses) sum += window.length();
    return sum;
  }

  /// Whether links lose bursts of more than 7 packets on average. A burst lasts for packets, not
  /// for a time, so it may take all repairs and signs of life until a live rank counts as silent.
  bool loses_long_bursts() const;
  /// Whether losses may take all repairs and signs of life of a live rank until it counts as
  /// silent: long bursts, or bursts beside more than a fifth of single losses.
  bool may_silence_live_ranks() const;
  /// Whether exact calls, and a rank that leaves, may have to wait until their deadlines.
  bool deadlines_may_pass() const;

  /// Whether one of the ranks is gone for good when the faults are over.
  bool loses_victim() const { return crashes() || evict_at != kNever || leave_at != kNever; }

  /// Whether receive buffers overflow, and no rank asks again for the packets that they drop.
  bool overflows_unrepaired() const {
    const bool starved = on.test(static_cast<std::size_t>(FaultKind::starved_buffers));
    return starved && !(mechanisms.repair && mechanisms.scatter_repair);
  }

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

inline constexpr std::size_t kStatuses = static_cast<std::size_t>(Status::peer_left) + 1;
inline constexpr std::size_t kAbortReasons =
    static_cast<std::size_t>(AbortReason::tag_forgotten) + 1;

struct SimulationResult {
  std::uint64_t trace_hash = 0;         // over every packet and every result byte
  std::vector<std::string> violations;  // broken promises; empty when the run is good
  Duration virtual_time{};
  std::uint64_t packets = 0;
  std::uint64_t calls = 0;    // ended calls, over all ranks
  std::uint64_t partial = 0;  // of them with something missing
  std::array<std::uint64_t, kStatuses> statuses{};
  std::array<std::uint64_t, kAbortReasons> abort_reasons{};  // of the aborted ones
  EndpointCounters counters;  // of all ranks; only `dropped` is summed
  FaultStatistics faults;
  std::uint64_t forged = 0, replayed = 0;     // PortStatistics, of all ranks
  std::array<std::uint64_t, 2> part_calls{};  // of SimulationPlan::part: others, complete ones
};

/// Runs the plan. The oracles:
///   every call ends by its deadline, bounded ones by their bounds, also while one rank is paused;
///   a call under a learnt bound lacks of ranks that are only late no more than a step may lose,
///   and waits for no rank that it knows to be gone; both count without the time of work on buffers
///   (simulated_work.h); exact results equal the reduction in the order of their schedules, bit by
///   bit; bounded results equal the reduction over exactly the contributors that the report names,
///   and are filled as MissingFill says where it names none; or they are NaN as a whole on every
///   rank that heard of NaN or infinity in an input, and other ranks have nothing of that input; a
///   status has a reason among the faults, and blames only the victim where only it can be at
///   fault;
///   calls after healing are complete;
///   another job on the same network, and one that takes the place of this one, get their own
///   results, and so does a communicator that is split from the job;
///   no nonce comes twice under a key (seal_ledger.h); packets that no rank has sealed, and those
///   that come again, change nothing but a counter;
///   agrees with the schedule and with the loss by range;
///   after a crash or an eviction exact calls end as peer_dead or evicted, those made later at
///   once, and bounded ones go on with the others alone; whatever comes of that rank is refused,
///   and counted;
///   after a rank has left, exact calls that it has not made end as peer_left within 1 ms; those
///   that it has made complete all the same, and then its close() returns. close() takes its whole
///   deadline only where ranks are cut off, a clock jumps, or the bound of a call ends too late;
///   a call to which the victim's memory is refused ends as aborted, blaming that rank, or has its
///   result; the process goes on;
///   a call for which one rank asks for something else is complete nowhere; where packets arrive in
///   time, it ends as a mismatch on every rank;
///   a rank that comes to an exact call after the others' deadline costs that call and no other:
///   they blame it, it blames itself;
///   a call that one rank refuses is complete nowhere, and blames that rank; where packets arrive
///   in time, it ends on every rank as aborted, bounded calls included;
///   once all calls are over, ranks hold nothing for them (Endpoint::memory()) and come to rest.
struct SimulationHooks {
  /// May replace the port of each rank: a test plants a defect there to see that the oracles catch
  /// it.
  std::function<std::unique_ptr<Port>(Rank, std::unique_ptr<Port>)> wrap = nullptr;
  /// Called with the fate of each packet of the job: SimulatedTraffic's words, and those of
  /// FaultPort.
  std::function<void(Time, Rank from, Rank to, std::span<const std::byte>, std::string_view fate)>
      event = nullptr;
  /// Where each rank's engine records; the recorder outlives the run. nullptr: nowhere.
  std::function<Recorder*(Rank)> recorder = nullptr;
};
SimulationResult run_simulation(const SimulationPlan& plan, const SimulationHooks& hooks = {});

}  // namespace tarpon
