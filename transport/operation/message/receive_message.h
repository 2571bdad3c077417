// A message of a stage, seen from its receiver: what has come, what is granted, and when this rank
// asks again for what is missing.
//
// Only its functions change it: the Receiver calls them for packets and time, the Granter for
// credit, ControlWriter for a REPAIR that leaves, OpenOperation where a peer ends or is gone. Not
// thread-safe. No clock inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "transport/operation/message/arrivals.h"
#include "transport/operation/message/message_credit.h"
#include "transport/operation/message/slot_lengths.h"

namespace tarpon {

/// How long a receiver waits before it asks. EndpointOptions explains the first two.
struct RequestDelays {
  Duration gap{};
  Duration quiet{};
  Duration longest{};  // between two requests
};

class ReceiveMessage {
 public:
  /// Begins anew, reusing its memory. `may_repair`: all slots may be asked for again.
  void reset(const ReceiveSpec& spec, std::uint32_t slot_bytes, bool may_repair, Time now);

  Rank peer() const { return peer_; }
  Sink& sink() const { return *sink_; }
  std::uint32_t slots() const { return lengths_.slots(); }
  const SlotLengths& lengths() const { return lengths_; }
  const Arrivals& arrivals() const { return arrivals_; }
  /// For the Receiver, which marks slots as here before their sink runs.
  Arrivals& arrivals() { return arrivals_; }
  const MessageCredit& credit() const { return credit_; }
  MessageCredit& credit() { return credit_; }

  /// Whether nothing more has to come.
  bool delivered() const { return arrivals_.presence().complete(); }
  /// Whether more may come that this rank waits for.
  bool is_expected() const { return !ended_ && !delivered(); }
  /// Notes that nothing more is waited for: the message is whole, or its sender has ended the
  /// operation, or is gone. Returns false when one of these was noted before.
  bool end() { return !std::exchange(ended_, true); }
  /// Slots that have come.
  std::uint32_t received() const { return arrivals_.presence().count() - given_up_; }
  /// Slots that are marked as here and never came.
  std::uint32_t given_up() const { return given_up_; }
  /// Bytes of the slots that have come.
  std::uint64_t received_bytes() const;

  // -- arrivals ----------------------------------------------------------------------------------

  /// Slots that are marked as here have come; the last one is `slot`, which `answers` a request or
  /// not. Learns of losses.
  void note_arrival(std::uint32_t slot, bool answers, Time now);
  /// The sender has sent all, or nothing more comes. Returns false when that was known.
  bool note_tail() { return !std::exchange(tail_seen_, true); }

  // -- requests ----------------------------------------------------------------------------------

  /// Whether anything may be asked for again.
  bool may_repair() const { return repair_below_ > 0; }
  /// Slots [0, below) may be asked for again.
  void allow_repair(std::uint32_t below);
  /// The Granter has extended the credit: the silence of a message that waited begins now.
  void extend_credit(std::uint32_t slots, Time now);
  /// Since when the sender is silent.
  Time silent_since() const { return std::max(last_heard_, asked_); }
  /// When this rank has to ask for what is missing, or give_up_gap(); kNever while it waits for
  /// credit.
  Time due(const RequestDelays& delays) const;
  /// This rank asks. Where nothing may be repaired, it repeats the grant; from the second time on
  /// what was granted and never seen counts as lost, since the grant must not stall behind it:
  /// returns true then.
  bool ask(Time now);
  /// A REPAIR that leaves.
  struct Request {
    std::size_t runs = 0;    // of slots
    std::uint32_t asks = 0;  // how often this rank has asked since the last progress
  };
  /// Writes the slots that it asks for, at most `most` of them and as many runs as fit.
  Request request(std::uint32_t most, std::span<tarpon_range> out);
  /// Gives up the slots of a gap where nothing may be repaired, if that is due. Returns how many
  /// runs of them it has written.
  std::size_t give_up_gap(const RequestDelays& delays, Time now, std::span<tarpon_range> out);

 private:
  /// Whether everything that the sender may send is here: there is nothing to ask for.
  bool waits_for_credit() const {
    const Presence& here = arrivals_.presence();
    return credit_.granted() < slots() && here.count() >= credit_.granted() && !here.has_gap();
  }

  Rank peer_ = 0;
  Sink* sink_ = nullptr;
  SlotLengths lengths_;
  Arrivals arrivals_;
  MessageCredit credit_;
  std::uint32_t repair_below_ = 0;
  bool tail_seen_ = false;
  bool ended_ = false;
  bool last_given_up_ = false;  // the last slot, which may be short, is among given_up_
  std::uint32_t given_up_ = 0;
  Time last_heard_{};
  Time asked_{};
  std::uint32_t granted_when_asked_ = 0;
  std::uint32_t asks_ = 0;
};

}  // namespace tarpon
