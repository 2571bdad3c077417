// An open operation and the numbering of its tag.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/endpoint.h"
#include "transport/endpoint/message.h"

namespace tarpon {

inline constexpr std::uint16_t kNoMessage = 0xffff;

/// Whether `a` comes before `b` in the numbering of operations, which wraps.
inline bool before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
}

struct Stage {
  std::vector<SendMessage> sends;
  std::vector<ReceiveMessage> receives;
  std::vector<std::uint16_t> send_of;     // by peer: index into sends, or kNoMessage
  std::vector<std::uint16_t> receive_of;  // by peer
  std::vector<std::uint16_t> turn;        // ordered: per slot, index of the receive that is next
  std::uint32_t ready = 0;
  std::uint32_t open_receives = 0;  // neither delivered nor final
  std::uint32_t unacknowledged = 0;
  bool ordered = false;
  bool repair = true;
  bool acknowledge = false;
  bool closed = false;  // stage_closed was told
  Duration bound{};

  SendMessage* send_to(Rank peer) {
    return send_of[peer] == kNoMessage ? nullptr : &sends[send_of[peer]];
  }
  ReceiveMessage* receive_from(Rank peer) {
    return receive_of[peer] == kNoMessage ? nullptr : &receives[receive_of[peer]];
  }
};

/// What this rank knows of a peer within one operation.
struct PeerView {
  bool heard = false;              // its operation is open: it has sent something of it
  bool disagrees = false;          // its signature differs
  bool mismatch_answered = false;  // our READY is on its way to it
  bool mismatch_told = false;      // the caller knows
  std::uint32_t readies = 0;
  Time ready_at = kNever;  // next READY to it
};

struct Operation {
  OperationHandle handle;
  std::uint32_t tag = 0;
  std::uint32_t number = 0;
  std::uint32_t slot_bytes = 0;
  std::uint16_t signature_hash = 0;
  Signature signature{};
  bool bounded = false;
  bool deadline_told = false;
  Time deadline = kNever;
  Duration gap_delay{};  // EndpointOptions', or what fits a short bound
  Duration quiet_delay{};
  Duration repair_delay_max{};
  Time started = kNever;  // bounded: when half of the ranks had begun
  std::vector<PeerView> peers;
  std::uint32_t heard = 1;  // ranks that have begun, this one included
  std::uint32_t stage_count = 0;
  std::array<Stage, TARPON_MAX_STAGES> stages;
};

/// The operations of one tag.
struct Channel {
  std::uint32_t tag = 0;
  std::uint32_t next_number = 0;
  std::vector<Operation*> open;                // by number
  std::vector<std::uint32_t> closed_below_of;  // by peer: its lowest open operation, as heard

  struct Kept {
    std::uint32_t number = 0;
    std::uint32_t slot_bytes = 0;
    std::uint16_t signature_hash = 0;
    std::unique_ptr<Retained> data;
  };
  std::vector<Kept> kept;  // by number, oldest first

  /// What is remembered of a closed operation, for peers that come to it later.
  struct Past {
    bool known = false;
    bool aborted = false;
    std::uint32_t number = 0;
    std::uint32_t reason = 0;  // aborted
    Signature signature{};
  };
  std::vector<Past> past;  // the latest ones, at number % size

  const Past* find_past(std::uint32_t number) const {
    const Past& one = past[number % past.size()];
    return one.known && one.number == number ? &one : nullptr;
  }

  std::uint32_t lowest_open() const { return open.empty() ? next_number : open.front()->number; }
};

/// Hash of a signature that rides in every header: FNV-1a folded to 16 bits.
std::uint16_t signature_hash(const Signature& signature);

/// Lays `spec` out in `operation`, reusing its memory.
void prepare(Operation& operation, const OperationSpec& spec, const EndpointOptions& options,
             Time now);

}  // namespace tarpon
