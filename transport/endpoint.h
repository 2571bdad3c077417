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
#include <span>
#include <vector>

#include "transport/agreement_packet.h"
#include "transport/counters.h"
#include "transport/endpoint_options.h"
#include "transport/near_work.h"
#include "transport/operation_news.h"
#include "transport/operation_spec.h"
#include "transport/operation_view.h"
#include "transport/peers_view.h"
#include "transport/port.h"
#include "transport/snapshot.h"
#include "transport/tags_view.h"
#include "transport/time.h"

namespace tarpon {

/// What an endpoint holds. All of it has limits.
struct EndpointMemory {
  std::uint32_t open_operations = 0;   // submitted here, and not closed
  std::uint32_t queued = 0;            // control packets and answers that wait to be polled
  std::uint32_t active_tags = 0;       // that some live peer has not passed
  std::uint32_t retained_entries = 0;  // results of closed operations, for peers
  std::uint64_t retained_bytes = 0;    // their memory, bookkeeping included
  std::uint32_t early_operations = 0;  // not begun here, but packets of them came
  std::uint32_t parked = 0;            // packets that wait for their operation

  /// Whether nothing is open or retained, and nothing waits to be polled.
  bool idle() const { return open_operations + retained_entries + queued == 0; }
};

class Endpoint {
 public:
  /// `port` describes the port whose packets will be exchanged; it need not live longer.
  Endpoint(const EndpointOptions& options, const PortCapabilities& port);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // -- operations ------------------------------------------------------------------------------

  /// Opens the next operation of `spec.tag` (numbered from 0) and delivers what was parked for it.
  /// Throws std::bad_alloc where the memory of the operation is refused; then nothing has changed.
  /// REQUIRES: tags().can_submit(spec.tag), and a spec whose peers are other ranks of the job.
  OperationHandle submit(const OperationSpec& spec, Time now);

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

  /// Takes what the caller knows of an open operation by other ways than packets.
  NearWork near(OperationHandle operation);

  EndpointMemory memory() const;

  /// Looks at an operation.
  OperationView view(OperationHandle operation) const;
  /// Looks at the tags.
  TagsView tags() const;
  /// Looks at the peers.
  PeersView peers() const;

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

  /// Sets the ranks that wait in rejoin(), bit r: rank r. They make no calls: bounded operations
  /// that they have not begun go on without them, as without silent ranks.
  void set_rejoining(std::uint64_t ranks, Time now);

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

  /// Describes what is going on now. Fills only the parts of `out` that are in use: pass a fresh
  /// snapshot, or one that an earlier call filled.
  void snapshot(EndpointSnapshot& out) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tarpon
