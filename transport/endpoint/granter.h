// Divides what may be on its way to this rank (Inflow) over the messages that come to it.
//
// A message shares the window while its sender can send it: the sender has begun the operation, and
// of a message of a later stage something has arrived. The oldest operation comes first, then the
// earliest stage, then the order of the receives, which is the order of addition. As many messages
// share as get kLeastShare each, at least one. The others keep what they have, and wait: few
// messages with large grants cost fewer CREDITs and system calls than many with small ones. Where
// one operation alone has begun, all its messages have even parts of the window, those included
// that have not begun.
//
// What others have got counts against the window: grants that are not used up, slots that were
// asked for again, and parked packets, which hold a cell each. The first grants of messages that
// have not begun reserve up to half of the window.
//
// A message that has credit and does not arrive for some time is stalled. Where others wait, only
// what is parked of it counts. Where all that share the window are stalled, each message that waits
// gets a little: no operation waits for ever because others have the window.
//
// Grants never shrink. Not thread-safe. No clock inside. Cost: a few additions a packet; a look at
// the messages that share, where a grant may have grown.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/endpoint/inflow.h"
#include "transport/endpoint/operation.h"

namespace tarpon {

/// A message whose grant has grown: the sender is to be told.
struct Grant {
  Operation* operation = nullptr;
  std::uint8_t stage = 0;
  ReceiveMessage* message = nullptr;
};

class Granter {
 public:
  static constexpr std::uint32_t kLeastShare = 32;  // slots

  Granter(const InflowOptions& options, std::uint32_t initial_credit);

  Inflow& inflow() { return inflow_; }

  /// Slots of each message that a sender may send before it has credit, where the receiver
  /// advertises `advertised`.
  std::uint32_t unasked(std::uint32_t advertised) const;

  /// Gives the first grants of an operation: READY carries them.
  void opened(Operation& operation, Time now);

  /// `peer` has begun the operation.
  void heard(Operation& operation, Rank peer);

  /// A slot of `message` has come or left the parking lot, slots were asked for again, or what was
  /// granted is lost. Once a packet.
  void progressed(const Operation& operation, ReceiveMessage& message);

  /// `messages` more of the open operations wait for nothing any more.
  void ended(std::uint32_t messages);

  /// An operation has ended. Where nothing is expected, the time until the next batch says nothing.
  void closed(Time now) {
    if (expected_ == 0) inflow_.rest(now);
  }

  /// Grants what is due; after a batch and by time. `operations`: the open ones, oldest first. The
  /// result holds until the next call.
  std::span<const Grant> give(Time now, std::span<Operation* const> operations);

  /// When give() has to be called next; kNever: after the next batch.
  Time next(Time now) const;

  /// How many slots one REPAIR may ask for: an even part of the window.
  std::uint32_t repair(std::uint32_t slot_bytes) const;

 private:
  void share_evenly(std::span<Operation* const> operations);
  void choose(Time now, std::span<Operation* const> operations, bool leaves_out_stalled);
  bool stalled(const ReceiveMessage& message, Time now) const;
  Duration stalled_after() const;
  void extend(const Grant& one, Time now);
  void help(Time now, std::span<Operation* const> operations);
  void add(const Grant& one, std::uint32_t slots, Time now);

  Inflow inflow_;
  const std::uint32_t initial_credit_;
  std::uint32_t expected_ = 0;     // messages that may still get data, over all operations
  std::uint64_t share_bytes_ = 0;  // what each message that shares may hold
  bool due_ = false;               // a grant may have grown
  bool waiting_ = false;           // operations wait because older ones have the window
  bool limited_ = false;           // some message waits, or was left out
  bool moving_ = false;            // some message has credit, and is not stalled
  std::uint32_t freed_ = 0;        // slots that have come since the last look, where limited_
  Time look_at_ = kNever;          // where limited_: when others may have stalled
  std::size_t turn_ = 0;           // paced: which message is first
  std::vector<Grant> sharing_;
  std::vector<Grant> grants_;
};

}  // namespace tarpon
