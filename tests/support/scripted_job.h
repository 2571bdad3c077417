// A job of real engines with flight recorders over the simulated network, in virtual time: ranks
// make blocking calls one after another, and a script makes things go wrong. Its recordings are
// what the ranks of a real job would leave.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/engine/engine.h"
#include "collectives/engine/flight_events.h"
#include "collectives/flight/file.h"
#include "tools/flight/case.h"
#include "tools/simulation/simulated_rank.h"
#include "transport/ports/forwarding_port.h"
#include "transport/random.h"
#include "transport/simulated/simulated_port.h"

namespace tarpon::testing_support {

/// What the ring of `recorder` holds, as a rank's file has it.
inline FlightDump dump_of(const Recorder& recorder, Rank rank, std::uint16_t ranks, Time now) {
  FlightDump dump;
  dump.header.job = 0xabc;
  dump.header.rank = rank;
  dump.header.world_size = ranks;
  dump.header.reason = DumpReason::status;
  dump.header.boot_id[0] = 'a';
  dump.header.written = recorder.written();
  dump.header.dumped_monotonic = now.time_since_epoch().count();
  for (std::uint64_t i = recorder.first(); i < recorder.written(); ++i) {
    RecordWords words;
    if (recorder.read(i, words)) dump.records.push_back(unpack(words, recorder.written()));
  }
  return dump;
}

class ScriptedJob : private SimulatedTraffic {
 public:
  static constexpr Duration kDeadline = 500ms;
  static constexpr std::uint64_t kCount = 4096;
  static constexpr std::uint32_t kCalls = 60;  // of each rank: they fit its ring

  explicit ScriptedJob(std::uint16_t ranks = 4)
      : network_({.ranks = ranks, .max_payload = 512, .receive_bytes = 16 << 20}), random_(7) {
    network_.watch(this);
    for (Rank rank = 0; rank < ranks; ++rank) ranks_.push_back(make_rank(rank, ranks));
  }
  ~ScriptedJob() { network_.watch(nullptr); }
  ScriptedJob(const ScriptedJob&) = delete;
  ScriptedJob& operator=(const ScriptedJob&) = delete;

  // -- before it runs

  /// The rank's clock, on a host of its own.
  void set_clock(Rank rank, Duration ahead, std::int64_t drift_ppm) {
    ranks_[rank]->clock = RankClock(drift_ppm, Time{}, ahead);
    ranks_[rank]->host = static_cast<char>('b' + rank);
  }
  /// Changes the arguments of one call of a rank.
  using Change = std::function<void(AllreduceArguments&)>;
  void change_call(Rank rank, std::uint32_t call, Change change) {
    ranks_[rank]->change = {call, std::move(change)};
  }
  /// Of all calls of all ranks.
  void change_calls(Change change) { every_call_ = std::move(change); }
  /// Between the end of call - 1 and the call itself.
  void think(Rank rank, std::uint32_t call, Duration length) {
    ranks_[rank]->think = {call, length};
  }
  /// Between two calls of each rank.
  void set_pace(Duration pace) { pace_ = pace; }
  /// It makes no call from `call` on.
  void leave(Rank rank, std::uint32_t call) { ranks_[rank]->calls = call; }
  /// It makes no call after its first one that fails. The others learn at `delay` after that.
  void leave_after_failure(Rank rank, Duration delay = 1ms) {
    ranks_[rank]->leaves_after_failure = delay;
  }
  void at(Duration when, std::function<void()> what) {
    events_.push_back({Time(1s) + when, std::move(what)});
  }
  /// As `rank` sends its first packet of `stage` in its call.
  void at_stage(Rank rank, std::uint32_t call, std::uint8_t stage, std::function<void()> what) {
    trigger_ = {rank, call, stage, std::move(what)};
  }

  // -- while it runs

  void stop(Rank rank, Duration length) { ranks_[rank]->stopped_until = now_ + length; }
  /// Its process is gone; the others learn of it 100 ms later.
  void kill(Rank rank) {
    ranks_[rank]->gone = true;
    events_.push_back({now_ + 100ms, [this, rank] {
                         for (auto& one : ranks_) {
                           if (!one->gone) {
                             one->engine->learn({.rank = rank,
                                                 .standing = Standing::dead,
                                                 .evidence = "its connection was reset"},
                                                local(*one));
                           }
                         }
                       }});
  }
  void evict(Rank rank) {
    const Fact fact{.rank = rank, .standing = Standing::evicted, .evidence = "it was behind"};
    for (auto& one : ranks_) one->engine->learn(fact, local(*one));
  }
  /// The mesh tells the others that `rank` has left.
  void tell_left(Rank rank) {
    const Fact fact{.rank = rank,
                    .standing = Standing::left,
                    .serves = true,
                    .next_numbers = ranks_[rank]->engine->unpassed()};
    for (auto& one : ranks_) {
      if (one->rank != rank) one->engine->learn(fact, local(*one));
    }
  }
  void abort(Rank rank) { ranks_[rank]->engine->abort(local(*ranks_[rank])); }
  void break_port(Rank rank) { *ranks_[rank]->broken = true; }
  /// Share of the packets that are lost; 1: the link is cut.
  void lose(Rank from, Rank to, double share) { loss_[from][to] = share; }
  /// Longer packets are lost.
  void limit_packets(Rank from, Rank to, std::size_t bytes) { longest_[from][to] = bytes; }
  void cut_off(Rank rank) {
    for (Rank other = 0; other < ranks_.size(); ++other) {
      lose(rank, other, 1);
      lose(other, rank, 1);
    }
  }
  /// Every packet takes this much longer.
  void slow_down(Duration delay) { delay_ = delay; }

  void run(Duration length) {
    const Time limit = Time(1s) + length;
    while (now_ < limit) {
      turn();
      now_ = std::min(limit, std::max(next_event(), now_ + 1us));
      network_.advance_to(now_);
    }
    turn();
  }

  /// Of the ranks that are not gone and not stopped, but for `lost`.
  std::vector<FlightDump> recordings(const std::vector<Rank>& lost = {}) const {
    std::vector<FlightDump> dumps;
    for (const auto& one : ranks_) {
      const bool none = one->gone || one->stopped_until > now_ ||
                        std::find(lost.begin(), lost.end(), one->rank) != lost.end();
      if (none) continue;
      dumps.push_back(dump_of(one->recorder, one->rank, static_cast<std::uint16_t>(ranks_.size()),
                              local(*one)));
      dumps.back().header.boot_id[0] = one->host;
    }
    return dumps;
  }

  /// Calls of `rank` that are over.
  std::uint32_t calls_over(Rank rank) const { return ranks_[rank]->made; }

 private:
  /// Packets arrive by the network's time, whatever the rank's clock says.
  class RankPort : public ForwardingPort {
   public:
    RankPort(std::unique_ptr<Port> inner, const SimulatedNetwork& network,
             std::shared_ptr<bool> broken)
        : ForwardingPort(std::move(inner)), network_(network), broken_(std::move(broken)) {}
    std::span<const RxPacket> receive(Time) override {
      return ForwardingPort::receive(network_.now());
    }
    std::optional<Error> failure() const override {
      if (!*broken_) return std::nullopt;
      return Error::make(Error::Code::io, "the interface is gone");
    }

   private:
    const SimulatedNetwork& network_;
    std::shared_ptr<bool> broken_;
  };

  struct OneRank {
    Rank rank = 0;
    RankClock clock;
    char host = 'a';
    std::shared_ptr<bool> broken = std::make_shared<bool>(false);
    Recorder recorder;
    std::unique_ptr<Port> port;
    std::unique_ptr<Engine> engine;
    std::vector<float> data = std::vector<float>(2 * kCount, 1.0f);
    std::vector<float> result = std::vector<float>(2 * kCount);
    std::shared_ptr<PendingCall> call;
    std::uint32_t made = 0;  // calls that are over
    std::uint32_t calls = kCalls;
    Time next_call{1s};
    std::pair<std::uint32_t, Duration> think{~0u, {}};
    std::pair<std::uint32_t, Change> change{~0u, nullptr};
    std::optional<Duration> leaves_after_failure;
    Time stopped_until{};
    bool gone = false;
  };

  struct Event {
    Time at;
    std::function<void()> what;
  };
  struct Trigger {
    Rank rank = 0;
    std::uint32_t call = ~0u;
    std::uint8_t stage = 0;
    std::function<void()> what;
  };

  std::unique_ptr<OneRank> make_rank(Rank rank, std::uint16_t ranks) {
    auto one = std::make_unique<OneRank>();
    one->rank = rank;
    one->port = std::make_unique<RankPort>(network_.make_port(rank), network_, one->broken);
    EngineOptions options;
    options.endpoint.rank = rank;
    options.endpoint.world_size = ranks;
    options.endpoint.job = 7;
    options.endpoint.integrity = TARPON_INTEGRITY_CRC32C;
    options.endpoint.recorder = &one->recorder;
    options.slot_bytes = 512;
    one->engine = std::make_unique<Engine>(options, *one->port);
    return one;
  }

  Route route(Time now, Rank from, Rank to, std::span<const std::byte> packet) override {
    tarpon_header header;
    std::memcpy(&header, packet.data(), sizeof header);
    if (header.type == TARPON_DATA && from == trigger_.rank && header.operation == trigger_.call &&
        tarpon_stage(&header) == trigger_.stage) {
      trigger_.call = ~0u;
      events_.push_back({now, trigger_.what});
    }
    const bool lost = random_.chance(loss_[from][to]) ||
                      (longest_[from][to] > 0 && packet.size() > longest_[from][to]);
    return {lost ? "script" : "", delay_ > Duration{} ? now + delay_ : Time{}};
  }
  void ended(Time, Rank, Rank, std::span<const std::byte>, std::string_view) override {}

  Time local(const OneRank& one) const { return one.clock.local(now_); }
  bool runs(const OneRank& one) const { return !one.gone && one.stopped_until <= now_; }

  /// Whatever happens now.
  void turn() {
    for (std::size_t i = 0; i < events_.size();) {
      if (events_[i].at > now_) {
        ++i;
        continue;
      }
      const auto what = std::move(events_[i].what);
      events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(i));
      what();
    }
    for (auto& one : ranks_) {
      // Its engine reads nothing any more, and unread packets would hold the network up.
      if (one->gone || *one->broken) (void)one->port->receive(now_);
      if (!runs(*one)) continue;
      while (one->engine->progress(local(*one))) {
      }
      make_calls(*one);
    }
  }

  void make_calls(OneRank& one) {
    if (one.call && one.call->done) {
      const bool failed = is_failure(one.call->report.status);
      one.call = nullptr;
      ++one.made;
      if (failed && one.leaves_after_failure && one.made < one.calls) {
        one.calls = one.made;
        events_.push_back(
            {now_ + *one.leaves_after_failure, [this, rank = one.rank] { tell_left(rank); }});
      }
      const Duration thinks = one.think.first == one.made ? one.think.second : Duration{};
      one.next_call = now_ + pace_ + thinks;
    }
    if (one.call || one.made >= one.calls || now_ < one.next_call) return;
    AllreduceArguments arguments;
    arguments.input = one.data.data();
    arguments.output = one.result.data();
    arguments.count = kCount;
    arguments.function = ReduceOp::avg;
    arguments.deadline = kDeadline;
    if (every_call_) every_call_(arguments);
    if (one.change.first == one.made) one.change.second(arguments);
    one.call = one.engine->submit(arguments, local(one));
  }

  Time next_event() const {
    Time next = network_.next_crossing();
    for (const Event& event : events_) next = std::min(next, event.at);
    for (const auto& one : ranks_) {
      if (one->gone) continue;
      if (!runs(*one)) {
        next = std::min(next, one->stopped_until);
        continue;
      }
      next = std::min({next, network_.next_arrival(one->rank),
                       one->clock.network(one->engine->next_deadline())});
      const bool calls = !one->call && one->made < one->calls;
      if (calls) next = std::min(next, std::max(one->next_call, now_ + 1us));
    }
    return next;
  }

  SimulatedNetwork network_;
  Random random_;
  std::vector<std::unique_ptr<OneRank>> ranks_;
  std::array<std::array<double, 8>, 8> loss_{};
  std::array<std::array<std::size_t, 8>, 8> longest_{};  // 0: no limit
  Duration delay_{};
  Duration pace_ = 10ms;
  Change every_call_;
  std::vector<Event> events_;
  Trigger trigger_;
  Time now_{1s};
};

}  // namespace tarpon::testing_support
