// The protocol endpoint of one rank: packets and time in, packets and events out.
//
// Sans-I/O: no clock, socket, thread, random source or environment inside. Whoever drives it (a
// live engine, a simulator) passes the time and moves the packets of a Port. PROTOCOL.md says what
// is on the wire, RELIABILITY.md how operations run; this header says what the endpoint promises.
//
// An *operation* is a few *stages*; in each stage this rank sends one *message* to some peers and
// receives one from some. A message is a run of *slots*, one packet's worth each, that may be lost,
// repeated and reordered. All slots have slot_bytes, but the last one of each range of a message
// may be short. The endpoint knows nothing of what the bytes mean: a Source yields them, a Sink
// takes them.
//
// Two policies of the same engine:
// - exact: what is missing is asked for until complete; only the deadline ends it before that
// - bounded: each stage ends by its bound; stages with `repair` ask for what is missing until then
//
// Not thread-safe: one thread at a time. No allocation per packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "bpf/wire.h"
#include "transport/closing.h"
#include "transport/counters.h"
#include "transport/port.h"
#include "transport/recorder.h"
#include "transport/snapshot.h"
#include "transport/time.h"
#include "transport/traffic_rules.h"

namespace tarpon {

using Signature = std::array<std::uint8_t, TARPON_SIGNATURE_BYTES>;

/// Words of the caller that READY carries to the callers at the peers. All zero: nothing is told.
using CallTerms = std::array<std::uint32_t, TARPON_TERMS>;

/// One slot of a message that is to be sent.
struct SlotView {
  const std::byte* payload = nullptr;  // readable until the operation is closed and the port
                                       // holds() no packet of it; nullptr: only Source::write()
                                       // can make it
  std::uint64_t contributors = 0;      // bit r: rank r's contribution is in it
};

/// Where the slots of outgoing messages come from. One source may feed several messages.
class Source {
 public:
  virtual ~Source() = default;
  virtual SlotView view(std::uint32_t slot) = 0;
  /// Writes the slot's payload; called where the port cannot gather or view() lends nothing.
  virtual void write(std::uint32_t slot, std::span<std::byte> frame) = 0;
};

/// Where the slots of incoming messages go.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Called once per slot and sender, straight from the receive buffer, which is unaligned and only
  /// lent for the call. May call Endpoint::advance(); no other member of the endpoint.
  virtual void deliver(Rank from, std::uint32_t slot, std::span<const std::byte> payload,
                       std::uint64_t contributors) = 0;
  /// Bounded stages without repair: this slot will not be delivered any more. Not told of what a
  /// bound cuts off.
  virtual void lost(Rank from, std::uint32_t slot) {
    static_cast<void>(from);
    static_cast<void>(slot);
  }
};

inline constexpr std::uint32_t kAllSlots = 0xffffffff;

struct SendSpec {
  Rank peer = 0;
  Source* source = nullptr;  // outlives the operation
  std::uint64_t bytes = 0;
  /// Of a message of several ranges: the bytes of each, not 0, together `bytes`. Each range starts
  /// a new slot, so its last slot may be short. Empty: one range.
  std::vector<std::uint64_t> ranges = {};
  std::uint32_t ready = kAllSlots;  // as StageSpec::ready, of this message; the lower one counts
};

struct ReceiveSpec {
  Rank peer = 0;
  Sink* sink = nullptr;  // outlives the operation
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> ranges = {};  // as in the sender's SendSpec
};

struct StageSpec {
  std::vector<SendSpec> sends;        // first ones are served first
  std::vector<ReceiveSpec> receives;  // at most one per peer
  /// Bounded operations ask for what is missing in this stage. Exact ones always do.
  bool repair = true;
  /// Receivers confirm the whole message, so that the sender may forget it early.
  bool acknowledge = false;
  /// Slots [0, ready) of all sends may go out; advance() raises it.
  std::uint32_t ready = kAllSlots;
};

/// Under which setting of the job an operation runs, and how its payload is to be read. The
/// endpoint compares `number` and carries the rest.
struct OperationEpoch {
  std::uint16_t number = 0;
  std::uint8_t form = 0;           // < 16; header field `incast_codec`
  std::uint16_t form_details = 0;  // header field `stride`
  bool operator==(const OperationEpoch&) const = default;
};

/// Whether epoch `a` is later than `b`: they are counted modulo 2^16.
constexpr bool later_epoch(std::uint16_t a, std::uint16_t b) {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(a - b)) > 0;
}

struct OperationSpec {
  std::uint32_t tag = 0;
  OperationEpoch epoch;          // packets of another one are dropped, and told of
  Signature signature{};         // equal on all ranks, else MISMATCH
  std::uint32_t slot_bytes = 0;  // <= the port's max_payload
  Time deadline = kNever;
  Time began = kNever;  // when the call began at this rank, if before submit(): its clock counts
  bool bounded = false;
  /// Bounded: what the operation is expected to take at most. Repair delays go by it.
  Duration bound{};
  CallTerms terms{};
  /// Exact: ranks send on what they receive. What this rank lacks may then wait for any rank, so
  /// that all are asked for signs of life. Nothing stands in for a confirmation: one that does not
  /// come is asked for.
  bool forwards = false;
  bool tells_terms = true;  // READY goes to every peer, also where DATA announces the operation
  /// Bounded: a stage ends before its bound once the tail of every message has been seen and
  /// nothing has come for this long since. Zero: it does not.
  std::array<Duration, TARPON_MAX_STAGES> early{};
  /// What this rank expects the operation to take, for the peers: header field `stage_time`.
  std::uint16_t stage_time = 0;
  /// Bounded: where a peer has closed it before, this rank is late from the start.
  bool fetches_when_late = true;
  /// Bounded: the caller's mark is on what this rank sends. Every packet of the operation says so,
  /// and those of the ranks that hear of it.
  bool marked = false;
  std::vector<StageSpec> stages;
};

/// When the stages of a bounded operation end.
struct StageEnds {
  std::array<Time, TARPON_MAX_STAGES> at{};
  /// A rank whose last stage has not left halfway between the last two ends asks the peers whether
  /// they still wait for it; where there is one stage, grace / 2 before its end. An answer is
  /// waited for as long as `grace`. The stage then has to leave, and the rank asks once more. So it
  /// may end up to three times `grace` after the end of its last stage.
  Duration grace{};
};

/// The next number of a tag: the rank that says so has made the operations below it.
struct NextNumber {
  std::uint32_t tag = 0;
  std::uint32_t number = 0;
  bool operator==(const NextNumber&) const = default;
};

/// Names an open operation. Invalid after close().
struct OperationHandle {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  bool operator==(const OperationHandle&) const = default;
};

/// The lender in the packets of an operation, valid beyond close(): packets may still wait in the
/// port. Operations opened later have other lenders.
constexpr Lender lender_of(OperationHandle operation) {
  return (Lender{operation.generation} << 32 | operation.index) + 1;
}

struct Event {
  enum class Kind : std::uint8_t {
    stage_closed,  // nothing more will be delivered in `stage`; `closing` says why
    acknowledged,  // all messages of `stage` that ask for it are confirmed by their receivers
    mismatch,      // `peer` runs another operation under this number: `signature`
    aborted,       // the operation is given up: `reason`, `ranks`; `peer` says so
    deadline,      // the deadline passed
    epoch,         // `peer` runs it in a later epoch
    silent,        // nothing of `peer` comes though it is asked; of no operation
    heard,         // `peer` was silent, and is heard again; of no operation
    clock,         // bounded: half of the ranks have begun, the last of them at `at`: the caller
                   // says when the stages end, by set_ends()
    late,          // bounded: `peer` has closed without anything of our last stage; we send no
                   // more of it, and the deadline alone ends what we still fetch
  };
  Kind kind = Kind::stage_closed;
  OperationHandle operation;
  std::uint8_t stage = 0;
  Closing closing = Closing::complete;
  Duration elapsed{};  // stage_closed: since the clock started
  Time at{};           // clock
  Rank peer = 0;
  std::uint32_t reason = 0;  // tarpon_abort_reason
  std::uint64_t ranks = 0;   // aborted: bit r: rank r is to blame
  bool begun_late = false;   // aborted: this rank began after some peer had ended it
  Signature signature{};     // mismatch
  OperationEpoch epoch;      // epoch
};

/// What has come of one incoming message.
struct MessageProgress {
  bool heard = false;           // that peer has begun this operation, the same one
  Time begun = kNever;          // when it did, as far as known
  std::uint32_t slots = 0;      // in the message
  std::uint32_t received = 0;   // of them here
  std::uint32_t end = 0;        // one above the last of them that is here, or known to be lost
  std::uint64_t bytes = 0;      // their payload
  std::uint64_t all_bytes = 0;  // payload of the whole message
};

/// Which ranks of a bounded operation have set OperationSpec::marked, as far as known.
struct Marks {
  bool heard = false;       // a packet of a peer has said that some rank has
  std::uint64_t ranks = 0;  // bit r: rank r has, this one included. Names may be lost: 0 beside
                            // `heard` stands for some rank
  bool any() const { return heard || ranks != 0; }
};

/// A closed operation's messages, kept so that peers can still ask for them.
struct Retained {
  explicit Retained(std::pmr::memory_resource* memory = std::pmr::new_delete_resource())
      : bytes(memory), contributors(memory) {}

  std::uint8_t stage = 0;
  std::pmr::vector<std::byte> bytes;             // one message, the same for all peers
  std::pmr::vector<std::uint64_t> contributors;  // per slot
};

/// Flows that a trial compares with one (EndpointOptions::flows).
inline constexpr std::uint32_t kTrialFlows = 4;

struct EndpointOptions {
  Rank rank = 0;
  std::uint16_t world_size = 1;
  std::uint32_t job = 0;
  std::uint16_t communicator = 0;
  tarpon_integrity integrity = TARPON_INTEGRITY_UDP;
  /// Operations per tag that may be open or parked for at once (W).
  std::uint32_t window = 8;
  /// Slots that a sender may have in flight to a peer that has not announced the operation.
  std::uint32_t initial_credit = 32;
  /// Operations whose early packets are parked at once, over all tags.
  std::uint32_t early_operations = 64;
  /// Memory of retained results, bookkeeping included; one result is always retained. At most
  /// 65,536 results.
  std::uint64_t retain_bytes = 64ull << 20;
  /// Tags whose next numbers are remembered once every peer has passed them, the oldest out first.
  std::uint32_t remembered_tags = 65'536;
  /// Peers that operations lack are asked for a sign of life, and count as silent without one.
  /// Off where nobody drives the endpoint between calls: then peers would not answer.
  bool detects_silence = true;
  /// Over how many of the port's flows messages go, a power of two; 0: by trial, and only messages
  /// of 1 MiB and more.
  std::uint32_t flows = 0;
  InflowRule inflow = InflowRule::window;
  SendRule sending = SendRule::credit;
  /// Cap of what this rank sends as DATA, headers included; 0: none.
  double max_bytes_per_second = 0;
  /// A gap is asked for after this long, a silent message after `quiet_delay`; both double from
  /// request to request up to `repair_delay_max`. (default; on 2 cores with 8 ranks scheduling
  /// alone delays packets by milliseconds) In bounded operations at most a 32nd, a 16th and a
  /// quarter of the shortest bound.
  Duration gap_delay = 2ms;
  Duration quiet_delay = 10ms;
  Duration repair_delay_max = 100ms;
  Recorder* recorder = nullptr;  // outlives the endpoint; without it nothing is recorded
};

/// What an endpoint holds beside its open operations. All of it has limits.
struct EndpointMemory {
  std::uint32_t active_tags = 0;       // that some live peer has not passed
  std::uint32_t retained_entries = 0;  // results of closed operations, for peers
  std::uint64_t retained_bytes = 0;    // their memory, bookkeeping included
  std::uint32_t early_operations = 0;  // not begun here, of which packets came
  std::uint32_t parked = 0;            // packets that wait for their operation
};

class Endpoint {
 public:
  /// `port` describes the port whose packets will be exchanged; it need not live longer.
  Endpoint(const EndpointOptions& options, const PortCapabilities& port);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // -- operations ------------------------------------------------------------------------------

  /// Whether submit() on `tag` is within the window. Of a tag that may be forgotten the first
  /// operation is made alone.
  bool can_submit(std::uint32_t tag) const;

  /// Opens the next operation of `spec.tag` (numbered from 0) and delivers what was parked for it.
  /// Throws std::bad_alloc where the memory of the operation is refused; then nothing has changed.
  /// REQUIRES: can_submit(spec.tag), and a spec whose peers are other ranks of the job.
  OperationHandle submit(const OperationSpec& spec, Time now);

  /// Number that the next submit() on `tag` takes: rotation of ownership counts by it.
  std::uint32_t next_number(std::uint32_t tag) const;

  /// Active tags, which some live peer has not passed, and the latest 1024 that all have passed.
  std::vector<std::uint32_t> tags() const;

  /// Whether this rank has forgotten the numbers of `tag`, and a peer knows them. No operation of
  /// it can match those of the peers: the caller aborts each (TARPON_ABORT_FORGOTTEN).
  bool is_lost(std::uint32_t tag) const;

  /// The lowest number of `tag` that is open; next_number() when none is.
  std::uint32_t lowest_open(std::uint32_t tag) const;

  /// Slots [0, ready) of the sends of `stage` may go out. Never lowers.
  void advance(OperationHandle operation, std::uint8_t stage, std::uint32_t ready);
  /// The same of the message to `peer` alone. REQUIRES: there is one.
  void advance(OperationHandle operation, std::uint8_t stage, Rank peer, std::uint32_t ready);

  /// Bounded, once the clock has started: when the stages end. Before, only early closing and the
  /// deadline end them. A rank that submitted this operation when its second last stage should have
  /// ended is late from the start (Event::Kind::late). Without effect on a late rank.
  void set_ends(OperationHandle operation, const StageEnds& ends, Time now);

  /// Ends a stage of a bounded operation before the end that set_ends() gave it; it closes as
  /// Closing::bound at the next on_timer(). If this rank has sent nothing of its last stage by
  /// then, it first asks the peers whether they still wait for it. Without effect on a stage that
  /// has closed, and on a late rank. REQUIRES: set_ends() was called.
  void end_stage(OperationHandle operation, std::size_t stage, Time now);

  /// What `peer` has told of this operation by READY; nothing before it comes.
  std::optional<CallTerms> terms(OperationHandle operation, Rank peer) const;

  /// Whether close() may retain `bytes` more now; when not, wait for acknowledgements or for the
  /// peers' next operations. Always when nothing is retained.
  bool may_retain(std::uint64_t bytes) const;

  /// Ranks that the oldest retained result is kept for: bit r: rank r.
  std::uint64_t holding_back() const;

  /// What it holds for operations that are over, or not begun.
  EndpointMemory memory() const;

  /// Ends the operation here: its sends stop, its sinks and sources are not touched again. With
  /// `retained`, peers are served from it until each of them has passed this operation. `absent`
  /// (bit r: rank r): whose last message did not come at all; this rank, where its own is not to be
  /// had. They learn it when they ask, and nobody waits for them.
  void close(OperationHandle operation, std::unique_ptr<Retained> retained,
             std::uint64_t absent = 0);

  /// As close(), and tells the peers why (tarpon_abort_reason), also those that begin it later.
  /// Peers in bounded mode go on without the sender of TARPON_ABORT_EXPIRED; every other reason
  /// ends the operation at them. `ranks` (bit r: rank r, not empty): the ranks to blame.
  void abort(OperationHandle operation, std::uint32_t reason, std::uint64_t ranks);

  /// `peer` is dead, for good: its packets are refused, nothing more is sent to it, and what it has
  /// not sent yet is missing. Bounded operations go on so; of exact ones the stages may then close
  /// as given_up, and the caller ends them.
  void peer_dead(Rank peer, Time now);

  /// `peer` has left: it has made the operations below `next_numbers`, and the last one of each tag
  /// that is not listed is over at every rank. It takes no part in others: they go on as without a
  /// dead rank. It still serves those that it has made, until peer_dead() says that it is gone.
  void peer_left(Rank peer, std::span<const NextNumber> next_numbers, Time now);

  /// Whether `peer` has left and takes no part in this operation, or is dead.
  bool takes_no_part(OperationHandle operation, Rank peer) const;

  /// Ranks that are silent: bit r: rank r. Bounded operations, those that are open and those that
  /// begin, go on without a silent rank. What comes of it still counts. Exact operations wait.
  std::uint64_t silent() const;

  /// The next number of each tag that this rank or some live peer has not passed, as far as heard.
  std::vector<NextNumber> unpassed() const;

  /// Progress of the message from `peer` in `stage`; zeros when there is none.
  MessageProgress progress(OperationHandle operation, std::uint8_t stage, Rank peer) const;

  /// What `peer` expects the operation to take, in units of 16 us; 0: unknown.
  std::uint16_t stage_time(OperationHandle operation, Rank peer) const;

  /// Every packet of a rank with a mark says so, and from then on everything that ranks which have
  /// heard of it send. So a rank that has not heard of it has nothing that such a rank
  /// contributed.
  Marks marks(OperationHandle operation) const;

  /// When anything of `peer` last came, of any operation; Time{}: never.
  Time last_heard(Rank peer) const;

  /// Below which number the furthest rank has ended its operations of `tag`, as far as heard.
  std::uint32_t furthest(std::uint32_t tag) const;

  /// Whether every slot of `stage` has gone out once, but for peers that have not begun and whose
  /// initial credit is used up.
  bool sent(OperationHandle operation, std::uint8_t stage) const;

  /// DATA that came after its stage or operation had closed: of this operation, and of earlier ones
  /// of its tag that have not been asked about. Resets the count.
  std::uint64_t take_late_packets(OperationHandle operation);

  /// Whether every message of `stage` that asks for acknowledgement has it.
  bool acknowledged(OperationHandle operation, std::uint8_t stage) const;

  /// The ranks of which such confirmations are missing, of all stages. Bit r: rank r.
  std::uint64_t unacknowledged(OperationHandle operation) const;

  /// Bounded: whether peers are asked if they have closed it without anything of this rank's last
  /// stage. Until they have answered (see StageEnds::grace) a rank that ends it may hold what the
  /// others count as missing. That stage stays open until then, beyond its end.
  bool in_doubt(OperationHandle operation) const;

  // -- packets, time, events -------------------------------------------------------------------

  void on_receive(Time now, std::span<const RxPacket> packets);

  /// Fills a prefix of `frames` and returns its length.
  std::size_t poll_transmit(Time now, std::span<TxPacket> frames);

  /// Call when next_deadline() has passed and nothing waits to be received.
  void on_timer(Time now);

  /// When on_timer() has something to do next; kNever when only packets matter.
  Time next_deadline() const;

  /// Takes the oldest event. False when there is none.
  bool poll_event(Event& event);

  const EndpointCounters& counters() const;

  /// Over how many flows large messages go at present, trials apart.
  std::uint32_t flows() const;

  /// What is going on now. Fills only what is in use: give it a fresh or a used one.
  void snapshot(EndpointSnapshot& out) const;

  /// Nothing is open or retained, and no packet waits to be polled.
  bool idle() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tarpon
