// Packets that are due, apart from DATA of open operations: control packets, HEARTBEATs, and slots
// of closed operations. Each kind leaves in the order in which it became due. Each has a limit.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "transport/endpoint.h"
#include "transport/endpoint/message.h"
#include "transport/endpoint/standings.h"

namespace tarpon {

/// A packet other than DATA and HEARTBEAT. Values that may change until it leaves (grants, ranges)
/// are read when it leaves; the rest is kept here, since the operation may be closed by then.
struct ControlDue {
  std::uint8_t type = 0;  // tarpon_type
  std::uint8_t stage = 0;
  Rank peer = 0;
  std::uint32_t tag = 0;
  std::uint32_t operation = 0;
  std::uint32_t slot = 0;  // grant or reason
  std::uint16_t signature_hash = 0;
  std::uint64_t contributors = 0;  // CLOSED: absent ranks; ABORT: the ranks to blame
};

struct HeartbeatDue {
  Rank peer = 0;
  std::uint32_t kind = 0;  // tarpon_heartbeat
  std::vector<NextNumber> numbers;
};

/// Slots of a closed operation that a peer has asked for.
struct RetainedDue {
  Rank peer = 0;
  std::uint32_t tag = 0;
  std::uint32_t number = 0;
  std::uint32_t count = 0;
  std::array<tarpon_range, kMaxRepairRanges> ranges{};
};

class ControlQueue {
 public:
  /// Limits, for each rank of the job. A flood of READYs or questions must not make the queue grow.
  /// A timer of this rank or of the peer sends again what finds no room.
  static constexpr std::size_t kMaxControl = 64;
  static constexpr std::size_t kMaxHeartbeats = 8;

  /// `standings` outlives the queue. Nothing is queued for a dead rank.
  ControlQueue(std::uint32_t world_size, const Standings& standings)
      : world_size_(world_size), standings_(standings) {}

  /// Returns false when there is no room.
  bool push(const ControlDue& due) {
    if (standings_.is_dead(due.peer)) return true;
    if (control_.size() >= kMaxControl * world_size_) return false;
    control_.push_back(due);
    return true;
  }
  std::optional<ControlDue> pop() { return pop_front(control_); }

  /// Drops `due` when there is no room.
  void push(HeartbeatDue due) {
    if (standings_.is_dead(due.peer)) return;
    if (heartbeats_.size() < kMaxHeartbeats * world_size_) heartbeats_.push_back(std::move(due));
  }
  std::optional<HeartbeatDue> pop_heartbeat() { return pop_front(heartbeats_); }

  /// Replaces the peer's earlier request for the operation, since the newest one lists all slots
  /// that are still missing. A request of no slots only removes it. So there is at most one request
  /// for each peer and retained operation. A request whose result is gone is dropped when its turn
  /// comes.
  void push(const RetainedDue& due) {
    std::erase_if(retained_, [&due](const RetainedDue& old) {
      return old.peer == due.peer && old.tag == due.tag && old.number == due.number;
    });
    if (due.count > 0) retained_.push_back(due);
  }
  /// The oldest request; nullptr: none. Valid until the next call of another member.
  RetainedDue* front_retained() { return retained_.empty() ? nullptr : &retained_.front(); }
  void pop_retained() { retained_.pop_front(); }

  /// Drops everything that is due to `peer`.
  void drop(Rank peer) {
    const auto to_peer = [peer](const auto& due) { return due.peer == peer; };
    std::erase_if(control_, to_peer);
    std::erase_if(heartbeats_, to_peer);
    std::erase_if(retained_, to_peer);
  }

  bool empty() const { return control_.empty() && heartbeats_.empty() && retained_.empty(); }

 private:
  template <typename Due>
  static std::optional<Due> pop_front(std::deque<Due>& queue) {
    if (queue.empty()) return std::nullopt;
    std::optional<Due> due(std::move(queue.front()));
    queue.pop_front();
    return due;
  }

  const std::uint32_t world_size_;
  const Standings& standings_;
  std::deque<ControlDue> control_;
  std::deque<HeartbeatDue> heartbeats_;
  std::deque<RetainedDue> retained_;
};

}  // namespace tarpon
