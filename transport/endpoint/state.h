// What an Endpoint holds. These files hold the protocol that works on it: endpoint.cc (what it
// tells its caller), opening.cc and ending.cc (operations), receive.cc (packets in), early.cc
// (those of operations to come), past.cc (of operations that are over), control.cc (packets in
// other than DATA), passed.cc (how far the peers are), transmit.cc (packets out), timer.cc (time),
// clock.cc (when bounded operations start and end), dead.cc (ranks that are gone), late.cc (ranks
// that come late), marks.cc (news of marks), heartbeat.cc (signs of life), snapshot.cc (what it is
// doing), forgotten.cc (ranks that remember numbers differently). Parts with data of their own:
// ControlQueue, EarlyPackets, Granter, Journal, LatenessCheck, Liveness, PacketWriter, PassedNews,
// PeerClocks, Receiver, Sender, Standings, TagHistory.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "transport/endpoint.h"
#include "transport/operation/granter.h"
#include "transport/operation/journal.h"
#include "transport/operation/lateness_check.h"
#include "transport/operation/operation.h"
#include "transport/operation/packet_writer.h"
#include "transport/operation/receiver.h"
#include "transport/operation/sender.h"
#include "transport/peers/control_queue.h"
#include "transport/peers/liveness.h"
#include "transport/peers/peer_clocks.h"
#include "transport/peers/standings.h"
#include "transport/rank_mask.h"
#include "transport/tags/early_packets.h"
#include "transport/tags/passed_news.h"
#include "transport/tags/tag_history.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

/// Ends the process when the caller has broken a contract: the state can no longer be trusted.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "tarpon: endpoint contract broken: %s\n", what);
  std::abort();
}

/// The last operation of a peer whose DATA was answered by CLOSED.
struct ClosedTold {
  bool known = false;
  std::uint32_t tag = 0;
  std::uint32_t operation = 0;
  std::uint8_t stage = 0;
  Time at{};
};

/// The operation that the last DATA of a batch belonged to: what was looked up for it holds for the
/// next packets of its sender.
struct LatestData {
  Operation* operation = nullptr;
  Rank sender = 0;
  std::uint16_t closed_below = 0;

  bool continues(const tarpon_header& header) const {
    return operation != nullptr && header.operation == operation->number &&
           header.tag == operation->tag && header.sender == sender &&
           header.closed_below == closed_below;
  }
};

struct Endpoint::State {
  State(const EndpointOptions& options, const PortCapabilities& port);

  // endpoint.cc
  Operation* find(OperationHandle handle);
  void tell(const Operation& operation, const Event& event);

  // opening.cc
  void begin(Operation& operation, const OperationSpec& spec, Time now) noexcept;
  void open(Operation& operation, Channel& channel, Time now);

  // ending.cc
  void end(Operation& operation, std::unique_ptr<Retained> retained, std::uint64_t absent,
           std::optional<std::uint32_t> abort_reason = std::nullopt);
  void tell_owners(const Channel& channel, std::uint32_t operation, std::uint64_t absent);
  void release_passed(Channel& channel);
  bool all_are_through(const Channel& channel) const;
  void forget_passed_tags();

  // receive.cc
  std::size_t receive(Time now, std::span<const RxPacket> packets, LatestData& latest_data);
  bool other_epoch(Operation& operation, const tarpon_header& header);
  std::size_t take_data(Time now, const tarpon_header& header, std::span<const RxPacket> packets,
                        LatestData& latest_data);
  void take_unknown(Time now, const Channel* channel, const tarpon_header& header,
                    const RxPacket& packet);
  void take_past(Time now, Channel& channel, const tarpon_header& header);
  bool was_told(const tarpon_header& header, Time now);
  void note_clock(const tarpon_header& header, Time now);
  void note_advertised(Rank peer, std::uint32_t advertised);
  std::size_t accept(Operation& operation, const tarpon_header& header,
                     std::span<const RxPacket> packets, Time now);
  std::span<const RxPacket> train_of(std::span<const RxPacket> packets, std::uint32_t slot) const;
  void announce_to_heard(const Operation& operation, Rank peer);
  void heard_from(Operation& operation, Rank peer, Duration before);

  // early.cc
  void take_early(const tarpon_header& header, const RxPacket& packet);
  void ask_again(Operation& operation, Rank peer);
  std::uint32_t adopt_early(Operation& operation, Time now);
  void take_early_control(const ControlPacket& packet);

  // control.cc
  void take_control(Time now, const ControlPacket& packet);
  void take_ready(Operation& operation, const ControlPacket& packet, Time now);
  void apply_grant(Operation& operation, std::uint8_t stage, Rank peer, std::uint32_t grant);
  void apply_repair(Operation& operation, const ControlPacket& packet);
  void take_abort(Operation& operation, Rank from, std::uint32_t reason, std::uint64_t ranks,
                  Time now);
  void take_agreement(const ControlPacket& packet);
  void tell_mismatch(Operation& operation, Rank peer, const Signature* theirs, Time now);
  void refuse_control(DropReason reason);

  // past.cc
  void take_past_control(Channel& channel, const ControlPacket& packet);
  std::uint64_t missed(Channel& channel, std::uint32_t number, Rank peer);
  void answer_past(Channel& channel, const tarpon_header& header, bool other_signature,
                   std::uint64_t gone);
  void apply_repair_of_closed(Channel& channel, const ControlPacket& packet);

  // passed.cc
  void note_closed_below(Channel& channel, const tarpon_header& header, Time now);
  void note_passed(Channel& channel, Rank peer, std::uint32_t below, bool proven, Time now);
  bool proves_end(Channel& channel, const tarpon_header& header);
  void check_jump(Channel& channel, Rank peer, Time now);
  void peer_passed(Operation& operation, Rank peer, bool gone, Time now);

  // forgotten.cc
  Channel* channel_of(const tarpon_header& header);
  void tell_forgotten(const tarpon_header& header, Rank forgetful);
  void take_told_forgotten(Channel& channel, const tarpon_header& header, Time now);
  bool take_forgotten(Channel& channel, Rank from, Time now);

  // heartbeat.cc
  void check_silence(Time now);
  void set_silent(Rank peer, bool silent, Time now);
  std::uint64_t lacked_ranks() const;
  void take_heartbeat(const ControlPacket& packet, Time now);
  std::size_t emit_heartbeats(Time now, std::span<TxPacket> frames);

  // late.cc
  bool has_ended(const Channel& channel, Rank peer, std::uint32_t number) const;
  void nothing_from(Operation& operation, Rank peer);
  void peer_closed(Operation& operation, Rank peer, Time now);
  void take_closed(Operation& operation, const ControlPacket& packet, Time now);
  void tell_void(const Operation& operation, Rank peer);
  void begin_fetch(Operation& operation);
  void ask_for_ends(Operation& operation, Time now);
  void become_late(Operation& operation, Rank peer, Time now);

  // marks.cc
  Marks marks_in(const tarpon_header& header) const;
  void take_marks(Operation& operation, const Marks& said);
  void mark_control(const ControlDue& due, const Operation* operation, tarpon_header& header);

  // dead.cc
  void leave_out(Operation& operation, Rank peer, bool gone);

  // transmit.cc
  std::size_t emit_control(Time now, std::span<TxPacket> frames);
  std::size_t emit_agreements(Time now, std::span<TxPacket> frames);
  bool fill_control(Time now, const ControlDue& due, TxPacket& frame);

  // timer.cc
  void run_timers(Time now);
  Time time_operation(Operation& operation, Time now);
  Time time_stages(Operation& operation, Time now);
  double outstanding(const Operation& operation, const Stage& stage) const;
  bool waits(const Operation& operation, std::uint32_t number, Time now) const;
  void extend(Operation& operation, std::uint32_t first, Time now);
  void send_ready(Operation& operation, Rank peer, Time now);
  Time ask_for_confirmations(Operation& operation, Time now);
  void ask_who_has_passed(Operation& operation, Time now);

  // clock.cc
  Time begun_before(Duration before) const;
  Time begun_at_sender(Duration encoded) const;
  bool enough_have_begun(const Operation& operation) const;
  void another_has_begun(Operation& operation);
  void fewer_take_part(Operation& operation, Time now);
  void start_clock(Operation& operation, Time at, Duration read_after);

  /// The ranks of the job, as a mask.
  std::uint64_t everybody() const { return first_ranks(options.world_size); }
  /// Entries of 8 bytes, ranges of a REPAIR or tags of a HEARTBEAT, that one packet carries.
  std::size_t max_entries() const {
    static_assert(sizeof(tarpon_range) == sizeof(tarpon_passed));
    static_assert(kMaxRepairRanges == TARPON_MAX_PASSED);
    return std::min<std::size_t>(kMaxRepairRanges, max_payload / sizeof(tarpon_range));
  }

  const EndpointOptions options;
  const std::uint32_t max_payload;
  Granter granter;
  Inflow& inflow;  // the granter's
  PeerClocks clocks;
  std::vector<std::uint8_t> advertised_by;  // by peer: Inflow::advertised() there
  Standings standings;
  Liveness liveness;
  LatenessCheck lateness;

  std::vector<std::unique_ptr<Operation>> operations;  // by handle index
  std::vector<std::uint32_t> free_operations;
  std::vector<Operation*> open_operations;  // oldest first
  TagHistory tags;
  std::vector<std::uint32_t> passed_tags;  // perhaps passed by all; empty between calls
  std::vector<ClosedTold> closed_told;     // by peer
  EarlyPackets early;
  ControlQueue control;
  std::vector<AgreementPacket> agreements;  // that have come
  Journal journal;
  Time timer = kNever;
  Time latest{};  // the time of the call in hand
  EndpointCounters counters;
  PassedNews passed_news;
  PacketWriter writer;
  Sender sender;
  Receiver receiver;
};

}  // namespace tarpon
