// One open operation: packets of it, time, and news of its peers in; events out.
//
// This class decides what a packet or a peer's end means for the operation. Its parts do the rest:
// Receiver and Sender move DATA, Announcer sends READYs, StageBounds ends the stages of bounded
// operations, LatenessCheck asks whether this rank is late. They share the Operation. Its peers and
// messages change by their own functions alone; the question belongs to LatenessCheck, the ends of
// stages to StageBounds, the marks to this class.
//
// Late ranks. Where peers have closed a bounded operation without this rank's last stage, that
// stage is void: this rank sends it to no other peer, or the results would differ. It fetches the
// last stage of the others, until the deadline.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/operation/announcer.h"
#include "transport/operation/stage_bounds.h"
#include "transport/peers/peer_clocks.h"
#include "transport/tags/early_operations.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

/// What the open operations of an endpoint share.
struct OperationParts {
  const EndpointOptions& options;
  const Participants& participants;
  const PeerClocks& clocks;
  EarlyOperations& early;
  ControlQueue& control;
  Journal& journal;
  EndpointCounters& counters;
  Granter& granter;
  Receiver& receiver;
  LatenessCheck& lateness;
  StageBounds& bounds;
  Announcer& announcer;
  Alarm& alarm;
  const std::vector<Operation*>& open;  // oldest first
};

class OpenOperation {
 public:
  /// `parts` outlive it.
  explicit OpenOperation(const OperationParts& parts) : parts_(parts) {}
  OpenOperation(const OpenOperation&) = delete;
  OpenOperation& operator=(const OpenOperation&) = delete;

  const Operation& state() const { return operation_; }
  /// For the parts that have fields in it.
  Operation& state() { return operation_; }

  /// Begins the prepared operation, whose number is taken: announces it, and applies what came
  /// early. `tag_state`: of its tag; valid while the operation is open.
  void begin(TagState& tag_state, Time now);

  // -- packets -----------------------------------------------------------------------------------

  /// Notes what the header of a DATA packet tells. Returns false when the packet is of another
  /// epoch; it is counted then. One call holds for all packets of the sender in a batch that have
  /// the same `closed_below`.
  bool admit(const tarpon_header& header, Time now);
  /// Takes the train of the first packet, whose header is `header` and was admitted. Returns the
  /// length of the train.
  std::size_t on_data(const tarpon_header& header, std::span<const RxPacket> packets, Time now);
  void on_control(const ControlPacket& packet, Time now);
  /// `peer` has begun, with `theirs`, as the caller knows without a packet.
  void note_begun(Rank peer, const Signature& theirs, Time now);

  // -- time --------------------------------------------------------------------------------------

  /// Does what is due. Returns when it has to be called again.
  Time on_time(Time now);
  /// As Endpoint::set_ends().
  void set_ends(const StageEnds& ends, Time now);

  // -- peers -------------------------------------------------------------------------------------

  /// `peer` has passed the operation. Its CLOSED will say whether it had data of this rank by then.
  void peer_closed(Rank peer, Time now);
  /// Stops waiting for `peer`: its packets that are here stay, the rest is missing. `gone`: the
  /// peer never comes back.
  void leave_out(Rank peer, bool gone, Time now);
  /// Stops waiting for `peer`, which has no data for this operation, but may need some.
  void nothing_from(Rank peer, Time now);
  /// Call it when fewer ranks take part: half of them may have begun.
  void fewer_take_part(Time now);
  /// Bounded: `peer` has closed the operation without this rank.
  void become_late(Rank peer, Time now);
  /// Bounded: the near peers do without this rank, as the caller knows.
  void left_out(Time now);
  /// A peer has told of marks, by another way than a packet.
  void note_marks(const Marks& told) { take_marks(told); }
  /// `from` gives the operation up, and blames `ranks`.
  void on_abort(Rank from, std::uint32_t reason, std::uint64_t ranks, Time now);

 private:
  bool is_other_epoch(const tarpon_header& header, Time now);
  void hear(Rank peer, Duration before, Time now);
  void another_has_begun(Time now);
  void tell_clock(Time now);

  void take_ready(const ControlPacket& packet, Time now);
  void take_closed(const ControlPacket& packet, Time now);
  void take_feedback(const ControlPacket& packet, Time now);
  void take_mismatch(Rank peer, const Signature* theirs, bool asks, Time now);
  void take_marks(const Marks& said);
  void take_grant(std::uint8_t stage, Rank peer, std::uint32_t grant, Time now);
  void take_grants(std::span<const std::uint32_t> grants, Rank peer, Time now);

  std::uint32_t adopt_early(Time now);
  void adopt_from(Rank peer, const EarlyOperation::FromPeer& from, Time now);
  void ask_again(Rank peer);
  void peer_passed(Rank peer, bool gone, Time now);
  void tell_void(Rank peer);
  void tell(const Event& event, Time now) { parts_.journal.tell(operation_, event, now); }
  std::span<Stage> stages() { return std::span(operation_.stages).first(operation_.stage_count); }
  std::uint64_t everybody() const { return first_ranks(parts_.options.world_size); }

  const OperationParts& parts_;
  Operation operation_;
  TagState* tag_state_ = nullptr;
};

}  // namespace tarpon
