// The protocol endpoint of one rank: packets and time in, packets and events out.
//
// Sans-I/O: no clock, socket, thread, random source or environment inside. Its driver (a live
// engine, a simulator) passes the time and moves the packets of a Port. PROTOCOL.md says what is on
// the wire, RELIABILITY.md how operations run; this header says what the endpoint promises.
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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/agreement_packet.h"
#include "transport/counters.h"
#include "transport/endpoint_options.h"
#include "transport/operation_news.h"
#include "transport/operation_spec.h"
#include "transport/port.h"
#include "transport/snapshot.h"
#include "transport/time.h"

namespace tarpon {

/// What an endpoint holds besides its open operations. All of it has limits.
struct EndpointMemory {
  std::uint32_t active_tags = 0;       // that some live peer has not passed
  std::uint32_t retained_entries = 0;  // results of closed operations, for peers
  std::uint64_t retained_bytes = 0;    // their memory, bookkeeping included
  std::uint32_t early_operations = 0;  // not begun here, but packets of them came
  std::uint32_t parked = 0;            // packets that wait for their operation
};

struct Operation;
class Participants;

/// Looks at one operation. Valid until the endpoint's next call that is not const. Of an operation
/// that is not open it says nothing: no marks, no doubt, no rank that takes no part; the others
/// REQUIRE that it is open.
class OperationView {
 public:
  /// The terms that the READY of `peer` carried; nothing before it has come.
  std::optional<CallTerms> terms(Rank peer) const;

  /// Whether `peer` has left and takes no part in this operation, or is dead.
  bool takes_no_part(Rank peer) const;

  /// Progress of the message from `peer` in `stage`; zeros when there is none.
  MessageProgress progress(std::uint8_t stage, Rank peer) const;

  /// The time that `peer` expects the operation to take, in units of 16 us; 0: unknown.
  std::uint16_t stage_time(Rank peer) const;

  /// The marks that this rank knows of. Every packet of a rank with a mark says so, and so does
  /// everything that other ranks send once they have heard of it. So a rank that has not heard of a
  /// mark has no data of the rank that set it.
  Marks marks() const;

  /// Whether every slot of `stage` has gone out once, except to peers that have not begun and whose
  /// initial credit is used up.
  bool sent(std::uint8_t stage) const;

  /// Whether every message of `stage` that asks for acknowledgement has it.
  bool acknowledged(std::uint8_t stage) const;

  /// The ranks whose acknowledgements are missing, over all stages. Bit r: rank r.
  std::uint64_t unacknowledged() const;

  /// Bounded: whether this rank is asking its peers if they have closed the operation without
  /// anything of its last stage. Until they have answered (see LatenessPolicy), a rank that ends
  /// the operation may hold what the others count as missing. That stage stays open until then,
  /// beyond its end.
  bool in_doubt() const;

 private:
  friend class Endpoint;
  OperationView(const Operation* operation, const Participants& participants, Rank self)
      : operation_(operation), participants_(participants), self_(self) {}
  const Operation& open(const char* what) const;

  const Operation* operation_;
  const Participants& participants_;
  Rank self_;
};

class Endpoint {
 public:
  /// `port` describes the port whose packets will be exchanged; it need not live longer.
  Endpoint(const EndpointOptions& options, const PortCapabilities& port);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // -- operations ------------------------------------------------------------------------------

  /// Whether submit() on `tag` is within the window. The first operation of a tag that this rank
  /// may have forgotten runs alone.
  bool can_submit(std::uint32_t tag) const;

  /// Opens the next operation of `spec.tag` (numbered from 0) and delivers what was parked for it.
  /// Throws std::bad_alloc where the memory of the operation is refused; then nothing has changed.
  /// REQUIRES: can_submit(spec.tag), and a spec whose peers are other ranks of the job.
  OperationHandle submit(const OperationSpec& spec, Time now);

  /// Number that the next submit() on `tag` takes; ownership rotates by it.
  std::uint32_t next_number(std::uint32_t tag) const;

  /// Returns the active tags and the latest 1024 others. A tag is active until this rank and all
  /// live peers have passed its latest operation.
  std::vector<std::uint32_t> tags() const;

  /// Tags from `first` on whose next operation a peer has begun and this rank has not.
  std::vector<std::uint32_t> tags_begun_by_peers(std::uint32_t first) const;

  /// Whether this rank has forgotten the numbers of `tag`, and a peer knows them. No operation of
  /// this tag can match those of the peers: the caller aborts each (TARPON_ABORT_FORGOTTEN).
  bool is_lost(std::uint32_t tag) const;

  /// The lowest number of `tag` that is open; next_number() when none is.
  std::uint32_t lowest_open(std::uint32_t tag) const;

  /// Allows slots [0, ready) of the sends of `stage` to go out. Never lowers the limit.
  void advance(OperationHandle operation, std::uint8_t stage, std::uint32_t ready);
  /// The same for the message to `peer` alone. REQUIRES: there is one.
  void advance(OperationHandle operation, std::uint8_t stage, Rank peer, std::uint32_t ready);

  /// Sets when the stages of a bounded operation end, once its clock has started. Before that, only
  /// early closing and the deadline end them. A rank that submitted the operation after
  /// LatenessPolicy::late_after is late from the start (Event::Kind::late). Without effect on a
  /// late rank.
  void set_ends(OperationHandle operation, const StageEnds& ends, Time now);

  /// Ends a stage of a bounded operation before the end that set_ends() gave it; it closes as
  /// Closing::bound at the next on_timer(). If this rank has sent nothing of its last stage by
  /// then, it first asks the peers whether they still wait for it. Without effect on a stage that
  /// has closed, and on a late rank. REQUIRES: set_ends() was called.
  void end_stage(OperationHandle operation, std::size_t stage, Time now);

  /// Whether close() may retain `bytes` more now; when not, wait for acknowledgements or for the
  /// peers' next operations. Always true when nothing is retained.
  bool may_retain(std::uint64_t bytes) const;

  /// Ranks that the oldest retained result is kept for: bit r: rank r.
  std::uint64_t holding_back() const;

  /// What the endpoint holds for operations that are over, or not begun.
  EndpointMemory memory() const;

  /// Looks at an operation.
  OperationView view(OperationHandle operation) const;

  /// Ends the operation here: its sends stop, its sinks and sources are not touched again. With
  /// `retained`, peers are served from it until each of them has passed this operation. `absent`
  /// (bit r: rank r): the ranks whose last message did not come at all, and this rank when its own
  /// result is not available. They learn it when they ask, and no rank waits for them.
  void close(OperationHandle operation, std::unique_ptr<Retained> retained,
             std::uint64_t absent = 0);

  /// As close(), and tells the peers why (tarpon_abort_reason), also those that begin it later.
  /// Peers in bounded mode go on without the sender of TARPON_ABORT_EXPIRED; every other reason
  /// ends the operation at them. `ranks` (bit r: rank r, not empty): the ranks to blame.
  void abort(OperationHandle operation, std::uint32_t reason, std::uint64_t ranks);

  /// Marks `peer` as dead, for good: its packets are refused, nothing more is sent to it, and what
  /// it has not sent yet is missing. Bounded operations go on without that. The stages of exact
  /// operations may then close as given_up, and the caller ends these operations.
  void peer_dead(Rank peer, Time now);

  /// Marks `peer` as left: it has made the operations below `next_numbers`, and the last operation
  /// of each tag that is not listed is over at every rank. It takes no part in other operations,
  /// which go on as without a dead rank. It still serves those that it has made, until peer_dead()
  /// says that it is gone.
  void peer_left(Rank peer, std::span<const NextNumber> next_numbers, Time now);

  /// Ranks that are silent: bit r: rank r. Bounded operations, open ones and new ones, go on
  /// without a silent rank. Packets that still come from it count. Exact operations wait.
  std::uint64_t silent() const;

  /// Sets the ranks that wait in rejoin(), bit r: rank r. They make no calls: bounded operations
  /// that they have not begun go on without them, as without silent ranks.
  void set_rejoining(std::uint64_t ranks, Time now);

  /// Whether silent ranks are found (EndpointOptions::detects_silence).
  bool detects_silence() const;

  /// The next number of each tag that this rank or some live peer has not passed, as far as heard.
  std::vector<NextNumber> unpassed() const;

  /// When the last packet of `peer` came, of any operation; Time{}: never.
  Time last_heard(Rank peer) const;

  /// The number below which the furthest rank has ended its operations of `tag`, as far as heard.
  std::uint32_t furthest(std::uint32_t tag) const;

  /// How many operations of `tag`, from `number` on, a rank that takes part in them has ended, as
  /// far as heard. Each of them makes this rank late if it begins it (Event::Kind::late).
  std::uint32_t ended_elsewhere(std::uint32_t tag, std::uint32_t number) const;

  /// Returns how many DATA packets came after their stage or operation had closed: of this
  /// operation, and of earlier ones of its tag that no call has counted yet. Resets the count.
  std::uint64_t take_late_packets(OperationHandle operation);

  // -- messages on verdicts --------------------------------------------------------------------

  /// Sends `packet` by the next poll_transmit(), once: it may get lost. Drops it when the peer is
  /// dead, or 8 of them already wait for this peer.
  void send(const AgreementPacket& packet);
  /// Returns the messages that have come, in their order, and forgets them. 8 of each peer are kept
  /// until then.
  std::vector<AgreementPacket> take_agreements();

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

  /// Number of flows that large messages go over at present, outside of trials.
  std::uint32_t flows() const;

  /// Describes what is going on now. Fills only the parts of `out` that are in use: pass a fresh
  /// snapshot, or one that an earlier call filled.
  void snapshot(EndpointSnapshot& out) const;

  /// Whether nothing is open or retained, and no packet waits to be polled.
  bool idle() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tarpon
