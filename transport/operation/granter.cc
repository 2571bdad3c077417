#include "transport/operation/granter.h"

#include <algorithm>
#include <utility>

namespace tarpon {
namespace {

// A sender that sends nothing for two timeouts has stalled; the time is at least and at most:
constexpr Duration kStalledAfter = 2ms;     // a descheduled sender may be back by then
constexpr Duration kStalledAtMost = 500ms;  // packets that a slow receiver reads late look like a
                                            // long round trip
constexpr std::uint32_t kLeastSlots = 2;    // slots: so that a message moves on
constexpr std::uint32_t kPacedGrant = 16;   // slots: a train that a small token bucket lets pass
constexpr Duration kLeastPause = 50us;      // between two looks at paced grants

std::uint64_t wire_bytes(const Operation& operation) {
  return operation.slot_bytes + TARPON_HEADER_BYTES;
}

std::uint32_t in_slots(std::uint64_t bytes, std::uint32_t slot_bytes) {
  const std::uint64_t slots = bytes / (slot_bytes + TARPON_HEADER_BYTES);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(slots, kLeastSlots, kAllSlots / 2));
}

std::uint32_t outstanding(const ReceiveMessage& message) {
  return message.credit().outstanding(message.arrivals().presence());
}

std::uint32_t on_its_way(const ReceiveMessage& message) {
  return message.credit().on_its_way(message.arrivals().presence());
}

std::uint32_t granted(const ReceiveMessage& message) {
  return message.credit().granted();
}

/// Slots that are here, or whose credit is used up without them.
std::uint32_t used(const ReceiveMessage& message) {
  return message.credit().used(message.arrivals().presence());
}

/// Whether the whole message is granted.
bool granted_all(const ReceiveMessage& message) {
  return granted(message) >= message.slots();
}

/// Whether the sender can send `message`, as far as this rank knows.
bool begun(const Operation& operation, std::uint32_t stage, const ReceiveMessage& message) {
  return operation.peers[message.peer()].heard() &&
         (stage == 0 || message.arrivals().presence().count() > 0 ||
          message.credit().has_written_off());
}

/// Bytes that senders may send of messages that have not begun.
std::uint64_t reserve(const Operation& operation) {
  std::uint64_t slots = 0;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    if (operation.stages[i].closed) continue;
    for (const ReceiveMessage& message : operation.stages[i].receives) {
      if (message.is_expected() && !begun(operation, i, message)) slots += outstanding(message);
    }
  }
  return slots * wire_bytes(operation);
}

/// Calls `visit` with each message that may still get data, in the order of their turns, until it
/// returns false.
template <typename Visit>
void each_expected(std::span<Operation* const> operations, Visit&& visit) {
  for (Operation* operation : operations) {
    for (std::uint8_t i = 0; i < operation->stage_count; ++i) {
      Stage& stage = operation->stages[i];
      if (stage.closed) continue;
      for (ReceiveMessage& message : stage.receives) {
        if (!message.is_expected()) continue;
        if (!visit(Grant{operation, i, &message})) return;
      }
    }
  }
}

/// Whether the window is to be shared by messages of several operations.
bool several_begun(std::span<Operation* const> operations) {
  const Operation* oldest = nullptr;
  bool several = false;
  each_expected(operations, [&](const Grant& one) {
    if (oldest == nullptr) oldest = one.operation;
    several = one.operation != oldest && begun(*one.operation, one.stage, *one.message);
    return !several;
  });
  return several;
}

}  // namespace

Granter::Granter(std::unique_ptr<Inflow> inflow, std::uint32_t initial_credit,
                 std::uint32_t world_size)
    : inflow_(std::move(inflow)),
      initial_credit_(initial_credit),
      advertised_by_(world_size, 0),
      share_bytes_(inflow_->window()) {}

std::uint32_t Granter::repair(std::uint32_t slot_bytes) const {
  return in_slots(inflow_->window() / std::max(1u, expected_), slot_bytes);
}

void Granter::opened(Operation& operation, Time now) {
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    expected_ += operation.stages[i].open_receives;
  }
  share_bytes_ = inflow_->window() / std::max(1u, expected_);
  operation.unasked = unasked(inflow_->advertised());
  const std::uint32_t first = inflow_->paced() ? 0 : in_slots(share_bytes_, operation.slot_bytes);
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    for (ReceiveMessage& message : operation.stages[i].receives) {
      message.credit().set_granted(std::min(message.slots(), std::max(operation.unasked, first)));
      inflow_->granted(now, granted(message) * wire_bytes(operation));
    }
  }
  due_ = true;
}

void Granter::heard(Operation& operation, Rank peer) {
  due_ = true;
  ReceiveMessage* message = operation.stages[0].receive_from(peer);
  if (message != nullptr) progressed(operation, *message);
}

void Granter::progressed(const Operation& operation, ReceiveMessage& message, std::uint32_t slots) {
  if (!message.is_expected()) return;
  message.credit().limit_requested(message.arrivals().presence());
  const std::uint64_t wire = wire_bytes(operation);
  if (limited_ && (freed_ += slots) >= kLeastShare) due_ = true;
  if (granted_all(message)) return;
  const std::uint64_t quarters = waiting_ ? 2 : 3;  // as in extend()
  const bool used_enough =
      std::uint64_t{4} * outstanding(message) * wire <= quarters * share_bytes_;
  const bool end = (message.slots() - used(message)) * wire <= share_bytes_;
  const bool first = message.arrivals().presence().count() == slots;
  if (used_enough || end || first) due_ = true;
}

void Granter::ended(std::uint32_t messages) {
  expected_ -= messages;
  if (limited_) due_ = true;
}

Duration Granter::stalled_after() const {
  return std::clamp<Duration>(2 * inflow_->timeout(), kStalledAfter, kStalledAtMost);
}

bool Granter::stalled(const ReceiveMessage& message, Time now) const {
  return on_its_way(message) > 0 && now - message.silent_since() > stalled_after();
}

/// Whether the pace has ended since the last give(). Then the grants that it held back are due.
bool Granter::pace_has_ended() const {
  return paced_ && !inflow_->paced();
}

void Granter::forget_shares() {
  sharing_.clear();
  limited_ = waiting_ = false;
}

/// Gives equal shares to the messages of the only operation that has begun.
void Granter::share_evenly(std::span<Operation* const> operations) {
  forget_shares();
  std::uint32_t messages = 0;
  const Operation* only = nullptr;
  each_expected(operations, [&](const Grant& one) {
    if (only == nullptr) only = one.operation;
    if (one.operation != only) return false;
    ++messages;
    const bool grows = !granted_all(*one.message);
    if (grows && begun(*one.operation, one.stage, *one.message)) sharing_.push_back(one);
    return true;
  });
  share_bytes_ = inflow_->window() / std::max(1u, messages);
}

/// Chooses the messages that share the window, and the share of each. `leaves_out_stalled`: stalled
/// messages get no share, and do not count.
void Granter::choose(Time now, std::span<Operation* const> operations, bool leaves_out_stalled) {
  forget_shares();
  const std::uint64_t window = inflow_->window();
  std::uint64_t rest = window, reserved = 0, shared = 0;
  const Operation* operation = nullptr;
  const auto charge = [&rest](std::uint64_t bytes) { rest -= std::min(rest, bytes); };
  each_expected(operations, [&](const Grant& one) {
    const ReceiveMessage& message = *one.message;
    const std::uint64_t wire = wire_bytes(*one.operation);
    if (one.operation != operation) {
      operation = one.operation;
      const std::uint64_t more = std::min(window / 2 - reserved, reserve(*operation));
      reserved += more;
      charge(more);
    }
    if (!begun(*operation, one.stage, message)) return true;
    if (leaves_out_stalled && stalled(message, now)) {
      limited_ = true;
    } else if (granted_all(message)) {
      charge(on_its_way(message) * wire);
    } else if (sharing_.empty() || rest >= kLeastShare * wire) {
      shared += std::min(rest, kLeastShare * wire);
      charge((kLeastShare + message.credit().requested()) * wire);
      sharing_.push_back(one);
    } else {
      waiting_ = true;
    }
    return !waiting_;
  });
  limited_ |= waiting_;
  share_bytes_ = (shared + rest) / std::max<std::size_t>(1, sharing_.size());
}

std::span<const Grant> Granter::give(Time now, std::span<Operation* const> operations) {
  grants_.clear();
  const bool timed = now >= look_at_;
  if (pace_has_ended()) due_ = true;
  paced_ = inflow_->paced();
  if (!due_ && !timed && !paced_) return grants_;
  if (paced_ && now < inflow_->next_grant()) return grants_;
  due_ = false;
  freed_ = 0;
  if (several_begun(operations)) {
    choose(now, operations, false);
    if (limited_ || timed) choose(now, operations, true);
  } else {
    share_evenly(operations);
  }
  turn_ = paced_ ? turn_ + 1 : 0;
  for (std::size_t i = 0; i < sharing_.size(); ++i) {
    extend(sharing_[(turn_ + i) % sharing_.size()], now);
  }
  if (!limited_) {
    look_at_ = kNever;
  } else if (timed || look_at_ == kNever) {
    look_at_ = now + stalled_after();
  }
  return grants_;
}

/// Grants a message what its share allows, once the grant grows by a quarter of the share or
/// reaches the end of the message. While other messages wait the step is half of the share: fewer
/// CREDITs.
void Granter::extend(const Grant& one, Time now) {
  const ReceiveMessage& message = *one.message;
  const std::uint32_t share = in_slots(share_bytes_, one.operation->slot_bytes);
  const std::uint32_t step = std::max(1u, waiting_ ? share / 2 : share / 4);
  const std::uint32_t end =
      message.slots() - used(message) < share ? message.slots() : used(message) + share;
  std::uint32_t more = end - std::min(end, granted(message));
  const bool worthwhile = end == message.slots() || more >= step;
  if (paced_) more = now < inflow_->next_grant() ? 0 : std::min(more, kPacedGrant);
  if (more > 0 && worthwhile) add(one, more, now);
}

void Granter::add(const Grant& one, std::uint32_t slots, Time now) {
  inflow_->granted(now, slots * wire_bytes(*one.operation));
  one.message->extend_credit(slots, now);
  grants_.push_back(one);
}

Time Granter::next(Time now) const {
  if (inflow_->paced()) {
    return expected_ > 0 ? std::max(inflow_->next_grant(), now + kLeastPause) : kNever;
  }
  return due_ || pace_has_ended() ? now : look_at_;
}

}  // namespace tarpon
