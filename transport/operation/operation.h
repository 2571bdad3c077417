// An open operation.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "transport/endpoint.h"
#include "transport/operation/begin_clock.h"
#include "transport/operation/message/receive_message.h"
#include "transport/operation/message/send_message.h"
#include "transport/operation/peer_exchange.h"
#include "transport/wire/operation_number.h"

namespace tarpon {

inline constexpr std::uint16_t kNoMessage = 0xffff;

/// How far a stage has gone out by multicast. Each slot leaves by multicast once.
struct Multicast {
  bool on = false;         // the stage is sent by multicast
  std::uint32_t next = 0;  // the first slot that has not left
  Time waits = kNever;     // since when slot `next` waits for the credit of some peers
  /// The latest answer to a request for a slot.
  struct Answer {
    Time at{};
    bool to_all = false;
  };
  std::vector<Answer> answers;  // by slot; empty before the first request
};

struct Stage {
  std::vector<SendMessage> sends;
  Multicast multicast;
  std::vector<ReceiveMessage> receives;
  std::vector<ReceiveMessage> spares;     // of ReceiveSpec::if_late, before left_out()
  std::vector<std::uint16_t> send_of;     // by peer: index into sends, or kNoMessage
  std::vector<std::uint16_t> receive_of;  // by peer
  std::uint32_t open_receives = 0;        // messages that have not ended
  bool awaits_caller = false;             // until Endpoint::close_stage()
  std::uint32_t unacknowledged = 0;
  bool repair = true;
  bool acknowledge = false;
  bool closed = false;              // stage_closed was told
  Time end = kNever;                // bounded: when it ends
  bool held = false;                // bounded: it has waited beyond its end (HoldPolicy)
  Duration early{};                 // silence after the last tail that ends it; zero: none does
  std::uint32_t tails_missing = 0;  // open receives whose tail has not been seen
  Time last_arrival{};

  SendMessage* send_to(Rank peer) {
    return send_of[peer] == kNoMessage ? nullptr : &sends[send_of[peer]];
  }
  const SendMessage* send_to(Rank peer) const {
    return send_of[peer] == kNoMessage ? nullptr : &sends[send_of[peer]];
  }
  const ReceiveMessage* receive_from(Rank peer) const {
    return receive_of[peer] == kNoMessage ? nullptr : &receives[receive_of[peer]];
  }
  ReceiveMessage* receive_from(Rank peer) {
    return receive_of[peer] == kNoMessage ? nullptr : &receives[receive_of[peer]];
  }
};

/// What a bounded operation knows of its question to the peers: have they closed it without
/// anything of this rank's last stage? LatenessCheck alone changes it.
struct Inquiry {
  std::uint32_t unanswered = 0;  // peers that were asked and have not answered
  Time since{};                  // when the first of them was asked
  Time until{};                  // when the wait for answers ends
  Time arises = kNever;          // when to ask, if nothing of that stage has gone out by then
  Time rests_until{};            // no new question before this time: the stage may go out
  Time near_end{};               // by this rank's clock: no peer's bound has closed it before
  std::uint64_t not_begun = 0;   // peers that had not begun when an early question was asked
  bool by_waiting = false;       // the peers were asked since one of them repeated its READY
  bool to_confirm = false;       // the peers are asked again when that stage has gone out
  Time gone_out = kNever;        // when that stage had gone out

  bool is_on() const { return unanswered > 0 || to_confirm; }
};

struct Operation {
  OperationHandle handle;
  std::uint32_t tag = 0;
  std::uint32_t number = 0;
  std::uint32_t slot_bytes = 0;
  OperationEpoch epoch;
  std::uint16_t latest_epoch = 0;  // the latest that a peer runs it in
  std::uint16_t signature_hash = 0;
  Signature signature{};
  bool bounded = false;
  bool late = false;        // bounded: peers have closed without this rank
  bool begun_late = false;  // a peer had closed or aborted it before this rank began
  bool deadline_told = false;
  Time deadline = kNever;
  Time opened{};
  BeginClock clock;
  Duration gap_delay{};      // EndpointOptions', or what fits a short bound
  Duration quiet_delay{};    // between READYs
  Duration silence_delay{};  // of a message, until it is asked for without proof of a loss
  Duration repair_delay_max{};
  Duration grace{};  // LatenessPolicy::grace, once the caller has said when the stages end
  HoldPolicy hold;   // the same
  bool awaits_confirmations = false;
  CallTerms terms{};
  std::vector<CallTerms> terms_by_peer;
  bool tells_terms = false;
  std::uint64_t near = 0;          // as OperationSpec::near
  std::uint64_t awaited_near = 0;  // peers that lack something, as the caller says
  std::uint16_t stage_time = 0;
  bool asks_if_late = false;  // bounded
  Inquiry inquiry;
  Marks marks;                  // bounded
  std::uint32_t unasked = 0;    // slots of each message that we advertised when it was opened
  std::uint32_t flows = 1;      // of its large messages to others
  bool flows_measured = false;  // its rate decides how many flows later ones take
  std::vector<PeerExchange> peers;
  std::uint64_t late_packets = 0;  // DATA that came after its stage had closed
  std::uint32_t stage_count = 0;
  std::array<Stage, TARPON_MAX_STAGES> stages;

  Stage& last_stage() { return stages[stage_count - 1]; }
  /// Whether a stage has waited beyond its end, and is open (HoldPolicy).
  bool waits() const {
    return std::any_of(stages.begin(), stages.begin() + stage_count,
                       [](const Stage& stage) { return stage.held && !stage.closed; });
  }
};

/// Whether peers run the operation in a later epoch: then none of their data can be used here.
inline bool stranded(const Operation& operation) {
  return operation.latest_epoch != operation.epoch.number;
}

/// Whether this rank has data in its last stage, and none of it has gone out.
bool nothing_sent(const Operation& operation);

/// Whether in addition a peer still needs that data. A peer that has passed the operation, or is
/// dead, does not.
bool nothing_sent_yet(const Operation& operation);

/// Whether DATA of `stage` has to wait for the answers of peers: this rank may be late, and a late
/// rank must not send its last stage.
bool holds_back(const Operation& operation, std::uint8_t stage);

/// The ranks whose confirmations are missing. Bit r: rank r.
std::uint64_t unconfirmed_by(const Operation& operation);

/// What the operation is doing; `self`: this rank.
OperationSnapshot snapshot_of(const Operation& operation, Rank self);

/// Lays `spec` out in `operation`, reusing its memory.
void prepare(Operation& operation, const OperationSpec& spec, const EndpointOptions& options,
             Time now);

}  // namespace tarpon
