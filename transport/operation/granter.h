// Divides what may be on its way to this rank (Inflow) over the messages that come to it.
//
// A message shares the window while its sender can send it: the sender has begun the operation, and
// if the message is of a later stage, some of it has arrived. The oldest operation comes first,
// then the earliest stage, then the order of the receives. As many messages share the window as can
// get kLeastShare each, at least one. The others keep their grants, and wait: few messages with
// large grants cost fewer CREDITs and system calls than many with small ones. When only one
// operation has begun, each of its messages has an equal share, also one that cannot be sent yet.
//
// These count against the window: grants that are not used up, and slots that were asked for again.
// The first grants of messages that have not begun reserve up to half of the window.
//
// A message is stalled when it has credit and nothing of it arrives for some time. While other
// messages wait, a stalled message does not count.
//
// Grants never shrink. Not thread-safe. Time is an argument. Cost: a few additions a packet; when a
// grant may have grown, a walk over the messages that share the window.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/operation/operation.h"
#include "transport/rate/inflow.h"

namespace tarpon {

/// A message whose grant has grown. The caller tells its sender.
struct Grant {
  Operation* operation = nullptr;
  std::uint8_t stage = 0;
  ReceiveMessage* message = nullptr;
};

class Granter {
 public:
  static constexpr std::uint32_t kLeastShare = 32;  // slots

  Granter(std::unique_ptr<Inflow> inflow, std::uint32_t initial_credit, std::uint32_t world_size);

  Inflow& inflow() { return *inflow_; }

  /// Slots of each message that a sender may send before it has credit, where the receiver
  /// advertises `advertised`.
  std::uint32_t unasked(std::uint32_t advertised) const {
    return inflow_->unasked_slots(advertised, initial_credit_);
  }

  /// Notes that `peer` advertises a credit. Returns false when it did before.
  bool note_advertised(Rank peer, std::uint32_t advertised) {
    std::uint8_t& known = advertised_by_[peer];
    if (known == advertised) return false;
    known = static_cast<std::uint8_t>(advertised);
    return true;
  }
  /// Slots of each message that this rank may send to `peer` before it has credit.
  std::uint32_t unasked_at(Rank peer) const { return unasked(advertised_by_[peer]); }

  /// Gives the first grants of an operation: READY carries them.
  void opened(Operation& operation, Time now);

  /// Notes that `peer` has begun the operation.
  void heard(Operation& operation, Rank peer);

  /// Call it when `slots` slots of `message` have come, when slots were asked for again, or when
  /// granted slots are lost. REQUIRES: the slot that completes a message is reported alone.
  void progressed(const Operation& operation, ReceiveMessage& message, std::uint32_t slots = 1);

  /// Notes that this rank waits for a message that it did not wait for.
  void expects() { ++expected_; }

  /// Notes that this number of messages of open operations expect no more data.
  void ended(std::uint32_t messages);

  /// Call it when an operation has ended, and ended() has counted its messages. When no message is
  /// expected any more, Inflow rests: the pause until the next batch tells nothing about rates.
  void closed(Time now) {
    if (expected_ == 0) inflow_->rest(now);
  }

  /// Gives the grants that are due. Call it after a batch, and at next(). `operations`: the open
  /// ones, oldest first. The result is valid until the next call.
  std::span<const Grant> give(Time now, std::span<Operation* const> operations);

  /// When give() has to be called next; kNever: after the next batch.
  Time next(Time now) const;

  /// The most slots that one REPAIR may ask for: the window divided by all expected messages.
  std::uint32_t repair(std::uint32_t slot_bytes) const;

 private:
  void forget_shares();
  void share_evenly(std::span<Operation* const> operations);
  void choose(Time now, std::span<Operation* const> operations, bool leaves_out_stalled);
  bool stalled(const ReceiveMessage& message, Time now) const;
  bool pace_has_ended() const;
  Duration stalled_after() const;
  void extend(const Grant& one, Time now);
  void add(const Grant& one, std::uint32_t slots, Time now);

  const std::unique_ptr<Inflow> inflow_;
  const std::uint32_t initial_credit_;
  std::vector<std::uint8_t> advertised_by_;  // by peer: Inflow::advertised() there
  std::uint32_t expected_ = 0;     // messages that may still get data, over all operations
  std::uint64_t share_bytes_ = 0;  // the share of each message in sharing_
  bool due_ = false;               // a grant may have grown
  bool waiting_ = false;           // some message waits because others have the window
  bool limited_ = false;           // waiting_, or a stalled message was left out
  std::uint32_t freed_ = 0;        // slots that have come since the last give(), while limited_
  Time look_at_ = kNever;          // while limited_: when messages may have stalled
  bool paced_ = false;             // by the last give()
  std::size_t turn_ = 0;           // paced: index of the message that is served first
  std::vector<Grant> sharing_;
  std::vector<Grant> grants_;
};

}  // namespace tarpon
