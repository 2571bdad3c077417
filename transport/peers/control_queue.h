// Packets that are due, apart from DATA of open operations: control packets, HEARTBEATs,
// AGREEMENTs, and slots of closed operations. Each kind leaves in the order in which it became due.
// Each has a limit.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/agreement_packet.h"
#include "transport/endpoint.h"
#include "transport/peers/participants.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

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
  /// Limits for each peer, so that a flood of READYs, questions or requests from one peer neither
  /// makes the queue grow nor takes the room of others. A timer of this rank or of the peer sends
  /// again what finds no room.
  static constexpr std::size_t kMaxControl = 128;
  static constexpr std::size_t kMaxHeartbeats = 8;
  static constexpr std::size_t kMaxAgreements = 8;
  static constexpr std::size_t kMaxRetained = 64;

  /// `participants` outlives the queue. Nothing is queued for a dead rank.
  ControlQueue(std::uint32_t world_size, const Participants& participants)
      : participants_(participants), of_peer_(world_size) {}

  /// Returns false when there is no room.
  bool push(const ControlDue& due) {
    if (participants_.is_dead(due.peer)) return true;
    if (of_peer_[due.peer].control == kMaxControl) return false;
    ++of_peer_[due.peer].control;
    control_.push_back(due);
    return true;
  }
  std::optional<ControlDue> pop() {
    auto due = pop_front(control_);
    if (due) --of_peer_[due->peer].control;
    return due;
  }

  /// Drops `due` when there is no room.
  void push(HeartbeatDue due) {
    if (participants_.is_dead(due.peer) || of_peer_[due.peer].heartbeats == kMaxHeartbeats) return;
    ++of_peer_[due.peer].heartbeats;
    heartbeats_.push_back(std::move(due));
  }
  std::optional<HeartbeatDue> pop_heartbeat() {
    auto due = pop_front(heartbeats_);
    if (due) --of_peer_[due->peer].heartbeats;
    return due;
  }

  /// Drops `due` when there is no room.
  void push(const AgreementPacket& due) {
    if (participants_.is_dead(due.peer) || of_peer_[due.peer].agreements == kMaxAgreements) return;
    ++of_peer_[due.peer].agreements;
    agreements_.push_back(due);
  }
  std::optional<AgreementPacket> pop_agreement() {
    auto due = pop_front(agreements_);
    if (due) --of_peer_[due->peer].agreements;
    return due;
  }

  /// Replaces the peer's earlier request for the operation, since the newest one lists all slots
  /// that are still missing. A request of no slots only removes it. So there is at most one request
  /// for each peer and retained operation. A request whose result is gone is dropped when its turn
  /// comes. Drops `due` when there is no room. Takes constant time.
  void push(const RetainedDue& due) {
    auto& requests = of_peer_[due.peer].retained;
    const auto earlier = requests.find(key_of(due));
    if (earlier != requests.end()) {
      retained_.erase(earlier->second);
      requests.erase(earlier);
    }
    if (due.count == 0 || requests.size() == kMaxRetained) return;
    requests.emplace(key_of(due), retained_.insert(retained_.end(), due));
  }
  /// The oldest request; nullptr: none. Valid until the next call of another member.
  RetainedDue* front_retained() { return retained_.empty() ? nullptr : &retained_.front(); }
  void pop_retained() {
    of_peer_[retained_.front().peer].retained.erase(key_of(retained_.front()));
    retained_.pop_front();
  }

  /// Drops everything that is due to `peer`.
  void drop(Rank peer) {
    const auto to_peer = [peer](const auto& due) { return due.peer == peer; };
    std::erase_if(control_, to_peer);
    std::erase_if(heartbeats_, to_peer);
    std::erase_if(agreements_, to_peer);
    std::erase_if(retained_, to_peer);
    of_peer_[peer] = {};
  }

  /// How much waits to be sent.
  std::size_t size() const {
    return control_.size() + heartbeats_.size() + agreements_.size() + retained_.size();
  }

 private:
  using Requests = std::list<RetainedDue>;

  /// What is due to one peer.
  struct OfPeer {
    std::size_t control = 0;
    std::size_t heartbeats = 0;
    std::size_t agreements = 0;
    std::unordered_map<std::uint64_t, Requests::iterator> retained;  // by key_of()
  };

  static std::uint64_t key_of(const RetainedDue& due) {
    return std::uint64_t{due.tag} << 32 | due.number;
  }

  template <typename Due>
  static std::optional<Due> pop_front(std::deque<Due>& queue) {
    if (queue.empty()) return std::nullopt;
    std::optional<Due> due(std::move(queue.front()));
    queue.pop_front();
    return due;
  }

  const Participants& participants_;
  std::vector<OfPeer> of_peer_;
  std::deque<ControlDue> control_;
  std::deque<HeartbeatDue> heartbeats_;
  std::deque<AgreementPacket> agreements_;
  Requests retained_;
};

}  // namespace tarpon
