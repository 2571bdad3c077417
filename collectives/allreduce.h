// What a caller asks of an AllReduce, and what it is told afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codec/layout.h"
#include "collectives/mechanisms.h"
#include "collectives/shares.h"
#include "collectives/types.h"
#include "transport/closing.h"
#include "transport/rank.h"
#include "transport/time.h"

namespace tarpon {

/// What a bounded AllReduce puts where the reduced value could not be had.
enum class MissingFill : std::uint8_t {
  zero,   // zeros: the update leaves these elements alone
  local,  // this rank's own contribution, scaled as if it spoke for all; zeros for the own shard of
          // a late rank in place, where others' contributions have been added to it already
};

/// Where the bound of a bounded AllReduce comes from; alike on all ranks.
enum class BoundRule : std::uint8_t {
  automatic,   // `bound` if there is one, else learnt
  learnt,      // the shortest that keeps the mean lost share at the loss target of the communicator
               // (Mechanisms::loss_target), at most `bound` if there is one
  optireduce,  // published: twice half of the 95th percentile of the first 20 calls of a tag, which
               // run exact
};

/// The tag of barriers; no caller may use it.
inline constexpr std::uint32_t kBarrierTag = 0xffffffff;

/// A reduction of the caller's own (ReduceOp::custom). It has to be associative and commutative:
/// ranks apply it in different orders.
struct CustomFunction {
  /// Names the function to the other ranks; different ids are a mismatch. The library gives it no
  /// meaning.
  std::uint32_t id = 0;
  /// out[i] = a[i] op b[i] for all elements. `out` may equal `a`, pointers need no alignment. Runs
  /// on the thread that drives the communicator, under its mutex: it must be quick, and must not
  /// call the communicator.
  void (*combine)(void* out, const void* a, const void* b, std::size_t elements,
                  void* context) noexcept = nullptr;
  void* context = nullptr;  // for combine; stays the caller's, until the call has ended
};

struct AllreduceArguments {
  const void* input = nullptr;  // `count` elements; unchanged unless it is also the output
  void* output = nullptr;       // `count` elements; equal to `input` for in place, else apart
  std::uint64_t count = 0;      // 0: exact calls still wait until every rank has made theirs
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;
  std::uint32_t tag = 0;       // calls of one tag match in order; tags run independently
  CustomFunction custom = {};  // where `function` is custom
  Mode mode = Mode::exact;     // other functions than sum and avg, and integers, always run exact
  Algorithm algorithm = Algorithm::tar;  // of exact calls; those that may be bounded run tar
  /// Algorithm::two_level_tar: ranks 0 to group_size - 1 are the first group, and so on. It divides
  /// the number of ranks. 0: default_group_size().
  std::uint32_t group_size = 0;
  Rank late_rank = 0;  // Algorithm::late_rank: that rank; the count of ranks is a power of two
  Shares shares = {};  // of exact calls by Algorithm::tar, one for each rank; others keep even ones
  Duration deadline = 10s;  // hard, from the call on
  BoundRule bound_rule = BoundRule::automatic;
  /// Time of the whole call, from its clock's start (when half of the ranks have begun) to its
  /// return; at most the deadline.
  std::optional<Duration> bound = std::nullopt;
  MissingFill missing = MissingFill::zero;
};

/// The largest divisor of `world` that is not above its root.
std::uint32_t default_group_size(std::uint32_t world);

/// Whether calls of this type and function can be bounded: sums and averages of floats. Others
/// always run exact.
bool can_be_bounded(DataType type, ReduceOp function);

/// Whether `arguments` ask for a bounded call of what can be bounded.
bool may_run_bounded(const AllreduceArguments& arguments);

enum class Status : std::uint8_t {
  complete,   // every contribution is in
  partial,    // bounded mode: the report says what is missing
  late_self,  // bounded mode: this rank began after a peer had ended the call; the result was
              // fetched, nothing of this rank is in it, and its own shard is filled
  peer_late,  // the deadline passed without `late_ranks`, here or in the calls before it that it
              // had to wait for (none: those lacked nothing any more); the output is undefined
  mismatch,   // `blamed` run another operation; `detail` names the field; output undefined
  aborted,    // the ranks in `blamed` gave the call up: `abort_reason` says why; output undefined
  failed,     // the port broke; `detail` says how; output undefined
  peer_dead,  // exact mode: the ranks in `blamed` are dead; `detail` has the evidence; output
              // undefined, and so it stays for exact calls. Bounded ones go on without them
  evicted,    // the ranks in `blamed` are out of this communicator: they held the others back. So
              // end all calls of such a rank, and of one that is dead to the others though it
              // runs; the first of a tag that does is the first operation that it misses. At the
              // others exact calls end so, while bounded ones go on without them. Output undefined;
              // Communicator::rejoin() takes them back
  peer_left,  // exact mode: the ranks in `blamed` left the job before this call, or no longer serve
              // it; output undefined. Bounded calls go on without them
};

std::string_view name(Status status);

/// Why a call was aborted. The numbers travel (tarpon_abort_reason) and never change.
enum class AbortReason : std::uint8_t {
  given_up = 0,       // by abort(), shrink(), rejoin() or destruction
  mismatch = 1,       // a rank met another operation under this number
  expired = 2,        // its deadline passed before it could begin
  late = 3,           // other ranks ended it at their deadline for want of this rank
  argument = 4,       // refused: its arguments make no sense
  deadline = 5,       // refused: its deadline was not positive
  memory = 6,         // refused: no memory for its buffers
  exception = 7,      // refused: an exception inside
  tag_forgotten = 8,  // the ranks no longer remember the same numbers of its tag
};

std::string_view name(AbortReason reason);

/// Elements [first, first + count) of a result hold the contributions of the ranks in
/// `contributors` (bit r: rank r) and no others; 0: nobody's, filled by MissingFill.
struct ContributorRun {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t contributors = 0;
  bool operator==(const ContributorRun&) const = default;
};

/// How a coded call's bucket travelled: what a position of it is, and with which signs.
struct CodedBucket {
  codec::CodedLayout layout;
  codec::SignKey key;
};

/// How far a call had come when it ended.
enum class CallStage : std::uint8_t {
  queued,   // not begun: it waited for earlier calls of its tag, its bucket was being encoded, or
            // the communicator was over
  scatter,  // stage 1 was open
  gather,   // stage 2 was open
  result,   // both had closed; at most confirmations, or a word of each rank, were awaited
};

std::string_view name(CallStage stage);

/// What a call had of one rank when it ended. Bytes are payload, by stage: what the rank
/// contributes to this rank's shard, then the reduced shard that it owns. By other algorithms than
/// tar: of the first stage, then of all later ones.
struct PeerReport {
  std::array<std::uint64_t, 2> bytes_expected{};  // 0 of this rank itself, and of calls not begun
  std::array<std::uint64_t, 2> bytes_received{};  // of them, each once; all of them when complete
  /// Bit q: rank q's contribution is in every element of the shard that this rank owns, its own
  /// included. 0: nobody's is in all of them, or the output is undefined.
  std::uint64_t contributors = 0;
  std::optional<Duration> last_heard;  // how long ago anything of it came; nothing: never
  bool operator==(const PeerReport&) const = default;
};

/// How a stage of a call ended at this rank, and what limited it. Of a stage that was open when the
/// call ended nothing but `bound` and `early` is known.
struct StageReport {
  Closing closing = Closing::complete;
  Duration elapsed{};  // since half of the ranks had begun
  Duration bound{};    // when it would have ended by the bound, since the same; bounded calls
  Duration early{};    // silence after the last tail that would have ended it; 0: none
};

/// Why contributions are missing, in shares of all: together Report::lost_fraction.
struct LossCauses {
  double cut = 0;         // had not come when the bound, or an early close, ended a stage
  double network = 0;     // a later packet of the same message came: lost, and not repaired in time
  double at_owner = 0;    // lacked at another rank, the owner of the shard
  double late_ranks = 0;  // contributions of ranks of which nothing came
  double void_shards = 0;  // nothing of the owner's shard came, or this rank is late itself

  /// What counts against the loss target and the budgets of steps.
  double of_network() const { return cut + network + at_owner; }
  bool operator==(const LossCauses&) const = default;
};

/// What one call's result is made of, as this rank saw it.
struct Report {
  Status status = Status::complete;
  std::uint32_t tag = 0;
  std::uint32_t operation = 0;           // number within the tag
  CallStage stage = CallStage::queued;   // where it was at the end
  Mode mode = Mode::exact;               // what ran
  Algorithm algorithm = Algorithm::tar;  // the same
  Duration elapsed{};                    // from submission to the end
  Duration paused{};                     // of it: this process stood still when it was due to act
  std::uint64_t bytes_sent = 0;          // payload of this rank's messages, each counted once
  std::uint64_t bytes_received = 0;      // payload that came, of all ranks
  std::vector<PeerReport> peers;         // by rank, whatever the status
  std::uint16_t epoch = 0;               // bounded mode: of the job's agreed settings
  std::optional<CodedBucket> coded;  // where it was; then `missing` and `runs` count positions of
                                     // the coded bucket, and what lacks there costs all elements
                                     // of its blocks alike
  /// Contributions lacking in this rank's result, in elements: rank r's at index r. Empty when
  /// nothing is missing.
  std::vector<std::uint64_t> missing;
  /// The same by range, in order and without gaps; empty when nothing is missing.
  std::vector<ContributorRun> runs;
  Duration bound{};  // bounded mode: D, the time of the whole call since half of the ranks had
                     // begun that these agreed on; 0: not so many began
  Duration clock_start{};  // bounded mode: when half of the ranks had begun, since the submission;
                           // negative where the others had before
  /// Bounded mode: peers might have ended without this rank's shard, and were asked beyond the
  /// bound.
  bool in_doubt = false;
  double lost_fraction = 0;  // 1 - contributions present / (ranks x count)
  double lost_stage1 = 0;    // of it: never reached the owner
  double lost_stage2 = 0;    // of it: the reduced value did not reach this rank
  LossCauses causes;         // of it: why
  std::array<StageReport, 2> stages;
  /// partial and late_self: owners of whose shard nothing is here, so that MissingFill made all of
  /// it. A late rank is one itself.
  std::vector<Rank> void_shards;
  std::uint64_t bytes_fetched = 0;  // late_self: what it has of the others' shards
  /// evicted, at the rank that is: the first operation of this tag that ended so, and how many are
  /// missed from there: up to this one, or to the last one that a peer was heard to have ended. (Of
  /// several that ran at once, single ones may have their result nevertheless.)
  std::uint32_t first_missed = 0;
  std::uint32_t operations_missed = 0;
  /// Bounded mode: an input held NaN or infinity, so every element of the result is NaN, on every
  /// rank that heard of it. One that did not has nothing of such a rank in its result, and reports
  /// that as missing; Communicator::agree() then skips the step on all.
  bool nonfinite = false;
  std::vector<Rank> nonfinite_ranks;  // whose; empty beside `nonfinite` where the names were lost
  Rescale rescale = Rescale::count;   // how slots that lack contributions were weighed
  /// Rescale::inverse: what each rank's contribution to this rank's own shard was multiplied by;
  /// empty: by 1. Of other shards their owners' reports say it.
  std::vector<double> weights;
  std::vector<Rank> late_ranks;  // nothing of theirs is in the result
  std::vector<Rank> blamed;      // mismatch, aborted, peer_dead, peer_left, evicted
  AbortReason abort_reason = AbortReason::given_up;  // aborted
  std::string detail;                                // one line for a human; empty when complete
};

}  // namespace tarpon
