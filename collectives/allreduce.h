// What a caller asks of an AllReduce, and what it is told afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec/layout.h"
#include "collectives/custom_function.h"
#include "collectives/mechanisms.h"
#include "collectives/shares.h"
#include "collectives/types.h"
#include "transport/closing.h"
#include "transport/rank.h"
#include "transport/time.h"

namespace tarpon {

/// What a bounded AllReduce writes where the reduced value is missing.
enum class MissingFill : std::uint8_t {
  zero,   // zeros: the update leaves these elements alone
  local,  // this rank's own contribution, scaled as if all ranks had given the same. A late rank in
          // place fills its own shard with zeros if others' contributions were added to it already
};

/// Where the bound of a bounded AllReduce comes from; alike on all ranks.
enum class BoundRule : std::uint8_t {
  automatic,   // `bound` if there is one, else learnt
  learnt,      // a bound that keeps the mean lost share below the loss target of the
               // communicator (Mechanisms::loss_target), at most `bound` if there is one
  optireduce,  // as published: each of the two stages has half of the 95th percentile of the first
               // 20 calls of a tag, which run exact
};

struct AllreduceArguments {
  const void* input = nullptr;  // `count` elements; unchanged unless it is also the output
  void* output = nullptr;       // `count` elements; equal to `input` for in place, else apart
  std::uint64_t count = 0;      // 0: exact calls still wait until every rank has made its call
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;
  std::uint32_t tag = 0;       // calls of one tag match in order; tags run independently. Tags from
                               // kFirstReservedTag on belong to the library (reserved_tags.h)
  CustomFunction custom = {};  // used if `function` is custom
  Mode mode = Mode::exact;     // other functions than sum and avg, and integers, always run exact
  /// Calls that may run bounded take automatic and hosts for hosts where that is possible
  /// (engine/hosts/hosted_tar_call.h), and run tar else.
  Algorithm algorithm = Algorithm::automatic;
  /// Algorithm::two_level_tar: ranks 0 to group_size - 1 are the first group, and so on. It divides
  /// the number of ranks. 0: default_group_size().
  std::uint32_t group_size = 0;
  Rank late_rank = 0;  // Algorithm::late_rank: the late one; the number of ranks is a power of two
  /// How much of the bucket each rank owns, alike on all ranks: of exact calls by Algorithm::tar,
  /// and of bounded calls. A coded call divides its bucket evenly, whatever the shares.
  Shares shares = {};
  /// Exact calls by Algorithm::tar with even `shares`, of 1 MiB or more, of tags below 64: shares
  /// follow the speed of the ranks' links, as measured in earlier calls of the tag. Every six calls
  /// the ranks exchange measurements by a small operation of a tag of its own. Calls that come
  /// before it has ended queue behind it: allreduce_async() never waits. If the exchange fails, the
  /// shares stay, and the detail of the next call's report says why. Alike on all ranks: a call
  /// that learns on some ranks only ends as Status::mismatch. CommunicatorOptions::learn_shares
  /// sets it for all calls. The order of additions, and so the last bits of a result, then differ
  /// between runs: refused without Mechanisms::rotation.
  bool learn_shares = false;
  Duration deadline = 10s;  // hard, from the call on
  BoundRule bound_rule = BoundRule::automatic;
  /// Time of the whole call, from its clock's start (when half of the ranks have begun) to its
  /// return; at most the deadline.
  std::optional<Duration> bound = std::nullopt;
  MissingFill missing = MissingFill::zero;
  /// Bounded calls: this rank contributes nothing, and takes the result that the others have. For a
  /// rank that is behind (Communicator::behind()) and is not to compute its input; `input` may be
  /// null, `missing` is zero. Where no other rank has ended the call, the call fails (unavailable)
  /// and takes no number.
  bool follows = false;
  /// Not empty: why the caller cannot run this call. It takes its number, reads no buffer, and ends
  /// as aborted on every rank (AbortReason::exception). This rank's report has the text.
  std::string refusal = {};
  /// A refusal that needs no memory of its own.
  static constexpr char kNoMemory[] = "no memory";
};

/// The largest divisor of `world` that is not above its root.
std::uint32_t default_group_size(std::uint32_t world);

/// What Algorithm::automatic stands for in a call over the network among `world` ranks: one_shot
/// where each rank sends few bytes by it, else tar. Alike on all ranks.
Algorithm choose_algorithm(const AllreduceArguments& arguments, std::uint32_t world);

/// Whether calls of this type and function can be bounded: sums and averages of floats. Others
/// always run exact.
bool can_be_bounded(DataType type, ReduceOp function);

/// Whether `arguments` ask for a bounded call, and their type and function can be bounded.
bool may_run_bounded(const AllreduceArguments& arguments);

/// Size of the input, in bytes: that of all its elements.
std::uint64_t bucket_bytes(const AllreduceArguments& arguments);

enum class Status : std::uint8_t {
  complete,   // every contribution is in
  partial,    // bounded mode: the report says what is missing
  late_self,  // bounded mode: a peer had ended the call before this rank had its result. This rank
              // has fetched that result, which lacks its own late data. Its own shard is filled
  peer_late,  // the deadline passed without `late_ranks`, in this call or in an earlier one that it
              // had to wait for (no late ranks: the earlier ones lacked nothing any more); output
              // undefined
  mismatch,   // `blamed` run another operation; `detail` names the field; output undefined
  aborted,    // the ranks in `blamed` gave the call up: `abort_reason` says why; output undefined
  failed,     // the port broke; `detail` says how; output undefined
  peer_dead,  // exact mode: the ranks in `blamed` are dead; `detail` has the evidence; output
              // undefined. All later exact calls end so too; bounded calls go on without them
  evicted,    // the ranks in `blamed` are out of this communicator: they held the others back. All
              // calls of such a rank end so, and all calls of a rank that runs but is dead to the
              // others; the first one of a tag is the first operation that the rank misses. At the
              // other ranks exact calls end so; bounded calls go on without the evicted ranks.
              // Output undefined; Communicator::rejoin() takes them back
  peer_left,  // exact mode: the ranks in `blamed` left the communicator before this call, or no
              // longer serve it; output undefined. Bounded calls go on without them
};

std::string_view name(Status status);

/// Whether a call that ended so has a result in its output.
constexpr bool has_result(Status status) {
  return status == Status::complete || status == Status::partial || status == Status::late_self;
}

/// Why a call was aborted. The numbers go over the wire (tarpon_abort_reason) and never change.
enum class AbortReason : std::uint8_t {
  given_up = 0,       // by abort(), shrink(), rejoin() or destruction
  mismatch = 1,       // a rank met another operation under this number
  expired = 2,        // its deadline passed before it could begin
  late = 3,           // other ranks ended it at their deadline, because this rank was missing
  argument = 4,       // refused: its arguments make no sense
  deadline = 5,       // refused: its deadline was not positive
  memory = 6,         // refused: no memory for its buffers
  exception = 7,      // refused: an exception inside
  tag_forgotten = 8,  // the ranks no longer remember the same numbers of its tag
};

std::string_view name(AbortReason reason);

/// Elements [first, first + count) of a result hold the contributions of the ranks in
/// `contributors` (bit r: rank r) and no others; 0: of no rank, filled by MissingFill.
struct ContributorRun {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t contributors = 0;
  bool operator==(const ContributorRun&) const = default;
};

/// How a call's bucket was coded: the layout, which says what a position is, and the signs.
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
  result,   // both had closed; the call waited only for confirmations, or to hear from each rank
};

std::string_view name(CallStage stage);

/// What a call had received from one rank when it ended. Bytes are payload, by stage: first the
/// rank's contribution to this rank's shard, then the reduced shard that the rank owns. With other
/// algorithms than tar: the first stage, then all later ones.
struct PeerReport {
  std::array<std::uint64_t, 2> bytes_expected{};  // 0 for this rank itself, and for calls not begun
  std::array<std::uint64_t, 2> bytes_received{};  // of these, each once; all of them when complete
  /// Bit q: rank q's contribution is in every element of the shard that the reported rank owns; q
  /// may be that rank. 0: no rank's contribution is in all of them, or the output is undefined.
  std::uint64_t contributors = 0;
  std::optional<Duration> last_heard;  // how long ago its last packet came; nothing: never
  bool operator==(const PeerReport&) const = default;
};

/// How a stage of a call ended at this rank, and what limited it. If the stage was open when the
/// call ended, only `bound` and `early` are known.
struct StageReport {
  Closing closing = Closing::complete;
  Duration elapsed{};  // since half of the ranks had begun
  Duration bound{};    // bounded calls: when the bound would have ended it, since the same moment
  Duration early{};    // silence after the last tail that would have ended it; 0: none would
};

/// Why contributions are missing, as shares of all. The sum is Report::lost_fraction.
struct LossCauses {
  double cut = 0;         // had not come when the bound, or an early close, ended a stage
  double network = 0;     // a later packet of the same message came: lost, and not repaired in time
  double at_owner = 0;    // missing at another rank, the owner of the shard
  double late_ranks = 0;  // contributions of live ranks from which nothing came; also what other
                          // owners lack of a rank whose shard is void here
  double void_shards = 0;  // nothing of a live owner's shard came, or this rank is late itself
  double gone = 0;         // data of ranks that are silent, dead, evicted or have left

  /// The share that counts against the budgets of steps.
  double of_network() const { return cut + network + at_owner; }
  /// The share that counts against the loss target: all but `gone`.
  double of_live_ranks() const { return of_network() + late_ranks + void_shards; }
  bool operator==(const LossCauses&) const = default;
};

/// What one call's result is made of, as this rank saw it.
struct Report {
  Status status = Status::complete;
  Collective collective = Collective::allreduce;
  std::uint32_t tag = 0;
  std::uint32_t operation = 0;           // number within the tag
  CallStage stage = CallStage::queued;   // where it was at the end
  Mode mode = Mode::exact;               // that ran
  Algorithm algorithm = Algorithm::tar;  // that ran
  Duration elapsed{};                    // from submission to the end
  Duration paused{};                     // part of it: this process was due to act and stood still
  std::uint64_t bytes_sent = 0;          // payload of this rank's messages, each byte counted once
  std::uint64_t bytes_received = 0;      // payload that came from all ranks
  std::vector<PeerReport> peers;         // by rank, whatever the status
  std::uint16_t epoch = 0;               // bounded mode: number of the job's agreed settings
  std::optional<CodedBucket> coded;  // set if the call was coded: `missing` and `runs` then count
                                     // positions of the coded bucket, and a missing one costs all
                                     // elements of its block alike
  /// Contributions missing in this rank's result, in elements: rank r's at index r. Empty when
  /// nothing is missing.
  std::vector<std::uint64_t> missing;
  /// The same by range, in order and without gaps; empty when nothing is missing.
  std::vector<ContributorRun> runs;
  Duration bound{};  // bounded mode: D, the time of the whole call that the ranks agreed on, from
                     // when half of them had begun; 0: fewer began
  Duration clock_start{};  // bounded mode: when half of the ranks had begun, since the submission;
                           // negative if that was before it
  /// Bounded mode: the call waited for live ranks, and its end moved by this much beyond `bound`.
  /// 0: it ended by `bound`. A call under a learnt bound waits while it lacks more data of live
  /// ranks than a training step may lose (LossBudget::usual()).
  Duration held{};
  /// Bounded mode: peers might have ended the call without this rank's shard, and this rank was
  /// still asking them after the bound.
  bool in_doubt = false;
  double lost_fraction = 0;  // 1 - contributions present / (ranks x count)
  double lost_stage1 = 0;    // part of it: never reached the owner
  double lost_stage2 = 0;    // part of it: the reduced value did not reach this rank
  LossCauses causes;         // lost_fraction by cause
  std::array<StageReport, 2> stages;
  /// partial and late_self: owners from whose shard nothing came, so that MissingFill made all of
  /// it. A late rank is one of them itself.
  std::vector<Rank> void_shards;
  std::uint64_t bytes_fetched = 0;  // late_self: bytes that came of the others' shards
  /// evicted, at the evicted rank: the first operation of this tag that ended so, and how many are
  /// missed from there on, up to this one or to the last one that a peer is known to have ended.
  /// (If several ran at once, single ones may have their result nevertheless.)
  std::uint32_t first_missed = 0;
  std::uint32_t operations_missed = 0;
  /// Bounded mode: an input held NaN or infinity, so every element of the result is NaN, on every
  /// rank that heard of it. The result of a rank that did not hear of it has no contribution of the
  /// rank with that input, which is reported as missing; Communicator::agree() then skips the step
  /// on all.
  bool nonfinite = false;
  std::vector<Rank> nonfinite_ranks;  // whose input; empty if that is not known
  Rescale rescale = Rescale::count;   // how slots that lack contributions were weighed
  std::vector<Rank> late_ranks;       // the result has no data of these ranks. With late_self the
                                      // list has only this rank and ranks that are gone
  std::vector<Rank> blamed;           // mismatch, aborted, peer_dead, peer_left, evicted
  /// Of a job of more than 64 ranks (grid/grid_communicator.h): the host of each rank. Else null.
  std::shared_ptr<const std::vector<std::uint8_t>> host_of;
  AbortReason abort_reason = AbortReason::given_up;  // aborted
  /// One line for a human. When complete: empty, or why learnt shares stayed as they were.
  std::string detail;

  /// `ranks` as a mask. Bit r: rank r; in a job of more than 64 ranks bit h: a rank of host h.
  std::uint64_t mask(const std::vector<Rank>& ranks) const;
};

}  // namespace tarpon
