// A simulated network of byte streams between the ranks of a job, in virtual time, from a seed.
//
// Streams behave as TCP does: bytes arrive in order, in pieces of any size, after a delay; a sender
// may find the buffer full; data that no acknowledgement comes for ends a stream after a while; a
// host that does not know a stream answers with a reset; a closed door refuses. A partition holds
// bytes back, a vanished host never answers, a stopped process answers nothing while its kernel
// accepts connections, and a broken stream may be known to be broken at one end only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/membership/streams.h"
#include "transport/random.h"

namespace tarpon::testing_support {

class World;

/// What a host does with what arrives. Called in virtual time.
class Host {
 public:
  virtual ~Host() = default;
  virtual void accepted(mesh::StreamId stream) = 0;
  virtual void connected(mesh::StreamId stream) = 0;
  virtual void received(mesh::StreamId stream, std::string bytes) = 0;
  virtual void writable(mesh::StreamId stream) = 0;
  virtual void ended(mesh::StreamId stream, const std::string& why, bool refused) = 0;
};

class World {
 public:
  static constexpr std::size_t kBuffer = 8192;     // bytes under way in one direction
  static constexpr Duration kUnacknowledged = 5s;  // then a stream ends

  static constexpr Duration kKeepalive = 14s;

  explicit World(std::uint64_t seed) : random(seed) {}

  std::size_t add(Host& host) {
    hosts_.emplace_back().host = &host;
    return hosts_.size() - 1;
  }

  Random random;
  Time now{1s};

  /// Calls `what` at `when`; in the order of time, then of calls.
  void at(Time when, std::function<void()> what) {
    events_.emplace(std::pair(std::max(when, now), ++sequence_), std::move(what));
  }

  /// Whether something is to happen until `limit`; then it has happened.
  bool step(Time limit) {
    if (events_.empty() || events_.begin()->first.first > limit) {
      now = std::max(now, limit);
      return false;
    }
    const auto first = events_.begin();
    now = first->first.first;
    const auto what = std::move(first->second);
    events_.erase(first);
    what();
    return true;
  }

  // -- faults

  /// Hosts in different groups do not reach each other. Group 0 at first.
  void set_group(std::size_t host, int group) { hosts_[host].group = group; }
  /// The process is gone: its streams are reset, and its door refuses.
  void crash(std::size_t host) {
    hosts_[host].state = State::crashed;
    for (auto& [id, stream] : streams_) {
      for (const std::uint64_t side : {0u, 1u}) {
        if (stream.ends[side].host == host && stream.ends[side].open) close_end(id, side);
      }
    }
  }
  /// The host is gone without a word.
  void vanish(std::size_t host) { hosts_[host].state = State::vanished; }
  /// The process does nothing until resume(); its kernel goes on.
  void stop(std::size_t host) { hosts_[host].stopped = true; }
  void resume(std::size_t host) {
    hosts_[host].stopped = false;
    for (auto& what : std::exchange(hosts_[host].backlog, {})) tell(host, std::move(what));
  }
  /// The door of a process that runs is refused, as by a firewall.
  void refuse(std::size_t host, bool refused) { hosts_[host].refuses = refused; }
  /// Another program listens at the door of a crashed process, and says nothing.
  void reuse_door(std::size_t host) {
    if (hosts_[host].state == State::crashed) hosts_[host].state = State::reused;
  }
  bool runs(std::size_t host) const { return hosts_[host].state == State::running; }

  /// Breaks a random stream: 0 for both ends, 1 and 2 for one.
  void break_one(int how) {
    std::vector<std::uint64_t> open;
    for (const auto& [id, stream] : streams_) {
      if (stream.established) open.push_back(id);
    }
    if (open.empty()) return;
    const std::uint64_t id = open[random.below(open.size())];
    for (const std::uint64_t side : {0u, 1u}) {
      // The other end learns it by what it writes, or by the kernel's probes of an idle connection.
      const bool now_too = how == 0 || how == static_cast<int>(side) + 1;
      at(now_too ? now : now + kKeepalive,
         [this, id, side] { end(id, side, "control connection reset", false); });
    }
  }

  /// Both ends of the streams between two hosts learn that they are broken.
  void break_between(std::size_t a, std::size_t b) {
    for (const auto& entry : streams_) {
      const std::size_t from = entry.second.ends[0].host, to = entry.second.ends[1].host;
      if (!(from == a && to == b) && !(from == b && to == a)) continue;
      for (const std::uint64_t side : {0u, 1u}) {
        at(now,
           [this, id = entry.first, side] { end(id, side, "control connection reset", false); });
      }
    }
  }

  bool reaches(std::size_t a, std::size_t b) const {
    return hosts_[a].group == hosts_[b].group && hosts_[a].state != State::vanished &&
           hosts_[b].state != State::vanished;
  }

  // -- streams, for the hosts

  mesh::StreamId connect(std::size_t from, std::size_t to) {
    const std::uint64_t id = ++last_stream_;
    Stream& stream = streams_[id];
    stream.ends[0].host = from;
    stream.ends[0].open = true;
    stream.ends[1].host = to;
    at(now + delay(), [this, id] { arrive(id); });
    return 2 * id;
  }

  std::size_t write(mesh::StreamId name, std::string_view bytes) {
    Stream* const stream = find(name);
    if (stream == nullptr) return bytes.size();
    End& end = stream->ends[name % 2];
    if (!end.open) return bytes.size();
    const std::size_t room = kBuffer - std::min(kBuffer, end.under_way.size());
    const std::size_t taken = std::min(bytes.size(), room);
    end.wants_room = taken < bytes.size();
    if (taken > 0 && end.unacknowledged == kNever) end.unacknowledged = now;
    end.under_way.append(bytes.substr(0, taken));
    if (taken > 0) schedule_delivery(name / 2, name % 2);
    return taken;
  }

  void close(mesh::StreamId name) {
    if (find(name) != nullptr) close_end(name / 2, name % 2);
  }

 private:
  enum class State : std::uint8_t { running, crashed, vanished, reused };
  struct HostState {
    Host* host = nullptr;
    State state = State::running;
    int group = 0;
    bool stopped = false;
    bool refuses = false;
    std::vector<std::function<void(Host&)>> backlog;
  };

  void tell(std::size_t host, std::function<void(Host&)> what) {
    HostState& one = hosts_[host];
    if (one.state != State::running) return;
    if (one.stopped) {
      one.backlog.push_back(std::move(what));
    } else {
      what(*one.host);
    }
  }
  struct End {
    std::size_t host = 0;
    bool open = false;
    std::string under_way;         // sent by this end, not delivered
    Time unacknowledged = kNever;  // since when
    bool wants_room = false;
    bool delivery_due = false;
    bool finished = false;  // this end is closed; the other one hears of it behind the bytes
  };
  struct Stream {
    std::array<End, 2> ends;
    bool established = false;
  };

  Duration delay() { return Duration(100us) + Duration(random.below(2'000'000)); }

  Stream* find(mesh::StreamId name) {
    const auto found = streams_.find(name / 2);
    return found == streams_.end() ? nullptr : &found->second;
  }

  /// The connection request, at the door.
  void arrive(std::uint64_t id) {
    Stream& stream = streams_[id];
    if (!stream.ends[0].open) return forget(id);
    const std::size_t from = stream.ends[0].host, to = stream.ends[1].host;
    if (!reaches(from, to)) {  // asked again
      at(now + 200ms, [this, id] { arrive(id); });
      return;
    }
    if (hosts_[to].state == State::crashed || hosts_[to].refuses) {
      at(now + delay(), [this, id] { end(id, 0, "Connection refused", true); });
      return;
    }
    stream.established = true;
    stream.ends[1].open = true;
    tell(to, [id](Host& host) { host.accepted(2 * id + 1); });
    at(now + delay(), [this, id] {
      Stream* const one = find(2 * id);
      if (one == nullptr || !one->ends[0].open) return;
      tell(one->ends[0].host, [id](Host& host) { host.connected(2 * id); });
    });
  }

  void schedule_delivery(std::uint64_t id, std::uint64_t side) {
    End& end = streams_[id].ends[side];
    if (std::exchange(end.delivery_due, true)) return;
    at(now + delay(), [this, id, side] { deliver(id, side); });
  }

  /// Some of the bytes of `side` reach the other end.
  void deliver(std::uint64_t id, std::uint64_t side) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    End& end = found->second.ends[side];
    End& other = found->second.ends[1 - side];
    end.delivery_due = false;
    if (!reaches(end.host, other.host)) {
      if (end.unacknowledged != kNever && now - end.unacknowledged >= kUnacknowledged) {
        // The other end learns it by the kernel's probes of an idle connection.
        at(now + kKeepalive,
           [this, id, side] { this->end(id, 1 - side, "control connection reset", false); });
        return this->end(id, side, "control connection lost: Connection timed out", false);
      }
      end.delivery_due = true;
      at(now + 200ms, [this, id, side] { deliver(id, side); });
      return;
    }
    if (!other.open) {  // that host does not know the stream
      return this->end(id, side, "control connection reset", false);
    }
    if (hosts_[other.host].stopped) {  // its window is full, or soon will be
      end.delivery_due = true;
      at(now + 200ms, [this, id, side] { deliver(id, side); });
      return;
    }
    const std::size_t most = random.chance(0.2) ? 1 + random.below(20) : kBuffer;
    std::string bytes = end.under_way.substr(0, most);
    end.under_way.erase(0, bytes.size());
    end.unacknowledged = end.under_way.empty() ? kNever : now;
    if (!end.under_way.empty() || end.finished) schedule_delivery(id, side);
    const mesh::StreamId here = 2 * id + side, there = 2 * id + (1 - side);
    const std::size_t sender = end.host, receiver = other.host;
    const bool room = end.open && std::exchange(end.wants_room, false);
    const bool fin = end.finished && bytes.empty();
    if (!bytes.empty()) tell(receiver, [&](Host& host) { host.received(there, std::move(bytes)); });
    if (room) tell(sender, [here](Host& host) { host.writable(here); });
    if (fin) this->end(id, 1 - side, "control connection reset", false);
  }

  /// `side` closes.
  void close_end(std::uint64_t id, std::uint64_t side) {
    Stream& stream = streams_[id];
    End& end = stream.ends[side];
    end.open = false;
    end.finished = true;
    end.unacknowledged = std::min(end.unacknowledged, now);
    if (!stream.established) return;
    schedule_delivery(id, side);
  }

  /// `side` learns that the stream is over.
  void end(std::uint64_t id, std::uint64_t side, const std::string& why, bool refused) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    End& one = found->second.ends[side];
    const bool was_open = std::exchange(one.open, false);
    const std::size_t host = one.host;
    if (!found->second.ends[0].open && !found->second.ends[1].open) forget(id);
    if (!was_open) return;
    tell(host, [=](Host& told) { told.ended(2 * id + side, why, refused); });
  }

  void forget(std::uint64_t id) { streams_.erase(id); }

  std::vector<HostState> hosts_;
  std::map<std::pair<Time, std::uint64_t>, std::function<void()>> events_;
  std::map<std::uint64_t, Stream> streams_;
  std::uint64_t sequence_ = 0;
  std::uint64_t last_stream_ = 0;
};

}  // namespace tarpon::testing_support
