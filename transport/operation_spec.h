// What a caller asks of the endpoint: an operation, its stages and messages, where their slots come
// from and where they go.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "bpf/wire.h"
#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

using Signature = std::array<std::uint8_t, TARPON_SIGNATURE_BYTES>;

/// Words that READY carries from the caller to the callers at the peers. All zero: nothing is told.
using CallTerms = std::array<std::uint32_t, TARPON_TERMS>;

/// Slots that are to be sent, one after another, at equal distances in memory.
struct OutgoingRun {
  const std::byte* payload = nullptr;  // of the first slot
  std::uint64_t stride = 0;            // bytes from one slot to the next
  std::uint32_t count = 0;             // of slots, not 0
  std::uint64_t contributors = 0;      // to each slot; bit r: it contains rank r's data
};

/// Where the slots of outgoing messages come from. One source may feed several messages.
class Source {
 public:
  virtual ~Source() = default;
  /// Lends the run that begins with slot `first`: at most `most` slots, which are ready. It is
  /// readable until the operation is closed and the port holds() no packet of it.
  virtual OutgoingRun lend(std::uint32_t first, std::uint32_t most) = 0;
};

/// Slots that have come from one rank, one after another. The packets are unaligned.
struct IncomingRun {
  Rank from = 0;
  std::uint32_t first = 0;            // the first slot
  std::span<const RxPacket> packets;  // one a slot
  std::uint64_t contributors = 0;     // to each slot

  std::span<const std::byte> payload(std::size_t i) const {
    return std::span(packets[i].data, packets[i].length).subspan(TARPON_HEADER_BYTES);
  }
};

/// Where the slots of incoming messages go.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Takes slots straight from the receive buffers, which are only lent for the call. Each slot of
  /// each sender comes once. May call Endpoint::advance(); no other member of the endpoint.
  virtual void deliver(const IncomingRun& run) = 0;
  /// Bounded stages without repair: this slot will not be delivered any more. Not called for slots
  /// that a bound cuts off.
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
  /// Bytes of each range of the message, not 0, `bytes` in total. Each range starts a new slot, so
  /// its last slot may be short. Empty: one range.
  std::vector<std::uint64_t> ranges = {};
  std::uint32_t ready = kAllSlots;  // as StageSpec::ready, for this message; the lower one counts
};

struct ReceiveSpec {
  Rank peer = 0;
  Sink* sink = nullptr;  // outlives the operation
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> ranges = {};  // as in the sender's SendSpec
  /// Of the last stage of a bounded operation: the data comes by other ways than packets. This rank
  /// waits for the message only after NearWork::left_out(), and fetches what the peer retains.
  bool if_late = false;
};

struct StageSpec {
  std::vector<SendSpec> sends;        // first ones are served first
  std::vector<ReceiveSpec> receives;  // at most one per peer
  /// Bounded operations ask for what is missing in this stage. Exact ones always do.
  bool repair = true;
  /// Receivers confirm the whole message, so that the sender may forget it early.
  bool acknowledge = false;
  /// All sends have the same source and lengths. Where the port multicasts, a packet may then serve
  /// all peers.
  bool alike = false;
  /// Slots [0, ready) of all sends may go out; advance() raises it.
  std::uint32_t ready = kAllSlots;
  /// Data of the stage also comes by other ways than packets: the stage stays open until the caller
  /// has called Endpoint::close_stage() as well. For exact operations.
  bool closed_by_caller = false;
};

/// The setting of the job that an operation runs under, whether or not it changes this operation,
/// and how the payload has to be read. The endpoint compares `number` and carries the rest.
struct OperationEpoch {
  std::uint16_t number = 0;
  std::uint8_t form = 0;           // TARPON_FORM_*; header field `incast_codec`
  std::uint16_t form_details = 0;  // header field `stride`
  bool operator==(const OperationEpoch&) const = default;
};

/// Whether epoch `a` is later than `b`: they are counted modulo 2^16.
constexpr bool later_epoch(std::uint16_t a, std::uint16_t b) {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(a - b)) > 0;
}

struct OperationSpec {
  std::uint32_t tag = 0;
  OperationEpoch epoch;          // packets of other epochs are dropped; a later one is reported
  Signature signature{};         // equal on all ranks, else MISMATCH
  std::uint32_t slot_bytes = 0;  // <= the port's max_payload
  Time deadline = kNever;
  Time began = kNever;  // when the call began at this rank, if before submit(); used by the clock
  bool bounded = false;
  /// Bounded: the longest time that the operation is expected to take. Repair delays depend on it.
  Duration bound{};
  CallTerms terms{};
  /// Entry r: the terms for rank r alone. READY then goes to every peer. Empty: `terms` for all.
  std::vector<CallTerms> terms_by_peer = {};
  /// The caller ends the operation when its receivers have confirmed their messages. This rank asks
  /// for each confirmation that does not come, and CLOSED confirms all messages to its sender.
  /// Exact: data that this rank lacks may wait for any rank, because ranks forward what they
  /// receive. So all ranks are asked for signs of life. Bounded: when a stage closes, this rank
  /// confirms its incomplete messages too, because it needs no more of them.
  bool awaits_confirmations = false;
  bool tells_terms = true;  // READY goes to every peer, also where DATA announces the operation
  /// Peers that learn by other ways than packets that this rank has begun the operation, and this
  /// rank of them (NearWork::begun()). Bit r: rank r. A peer that has not begun after
  /// EndpointOptions::quiet_delay gets READYs like any other one, because only its answer says that
  /// it has given the operation up.
  std::uint64_t near = 0;
  /// Bounded: a stage ends before its bound once the tail of every message has been seen and
  /// nothing has come for this long since. Zero: it does not.
  std::array<Duration, TARPON_MAX_STAGES> early{};
  /// Time that this rank expects the operation to take, told to the peers: header field
  /// `stage_time`.
  std::uint16_t stage_time = 0;
  /// Bounded: this rank asks its peers if it may be late, and is late from the start when a peer
  /// has closed the operation before. For operations of which peers retain what a late rank
  /// fetches.
  bool asks_if_late = true;
  /// Bounded: the caller marks what this rank sends. Its packets of the operation say so, and so do
  /// those of the ranks that hear of it, in the first stage only where its data is in the slot.
  bool marked = false;
  std::vector<StageSpec> stages;
};

/// When a rank counts as late, and how long it waits to learn that it is. The caller decides,
/// because the times depend on what the stages are for. The endpoint asks and answers, because
/// questions and answers are packets. Has no effect without OperationSpec::asks_if_late.
struct LatenessPolicy {
  /// A rank that submitted the operation later than this is late from the start.
  Time late_after = kNever;
  /// A rank that has sent nothing of its last stage asks the peers whether they still wait for it,
  /// this long before the end of that stage.
  Duration notice{};
  /// It waits for the answers for at most `grace`. Then the stage has to leave, and the rank asks
  /// once more. So it may end up to three times `grace` after the end of its last stage.
  Duration grace{};
};

/// Which stages stay open beyond their ends, because the missing data is worth more than the time.
/// At the end of a stage the endpoint adds up the missing data of ranks that may still send it.
/// Such ranks are live, not silent, not in rejoin(), and in the same epoch. The stage stays open
/// while that is more than the share `above` of all that the stage receives. It ends `grace` after
/// the share has fallen to `above`. The ends of later stages move by as much, and the endpoint
/// tells each move: Event::Kind::extended.
struct HoldPolicy {
  double above = 1;                             // 1: none waits
  Duration grace{};                             // above 0 where one may wait
  std::array<Time, TARPON_MAX_STAGES> until{};  // each stage waits until then at most
};

/// When the stages of a bounded operation end.
struct StageEnds {
  std::array<Time, TARPON_MAX_STAGES> at{};
  LatenessPolicy lateness;
  HoldPolicy hold;
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

inline constexpr std::uint64_t kAllReceivers = ~std::uint64_t{0};

/// A closed operation's messages, kept so that peers can still ask for them.
struct Retained {
  explicit Retained(std::pmr::memory_resource* memory = std::pmr::new_delete_resource())
      : bytes(memory), contributors(memory) {}

  std::uint8_t stage = 0;
  std::uint64_t receivers = kAllReceivers;       // bit r: rank r gets the message
  std::pmr::vector<std::byte> bytes;             // one message, the same for all receivers
  std::pmr::vector<std::uint64_t> contributors;  // per slot
};

}  // namespace tarpon
