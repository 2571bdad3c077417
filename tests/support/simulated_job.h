// A job of engines over the simulated network: virtual time, one thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <vector>

#include "collectives/engine/engine.h"
#include "collectives/engine/schedules/shards.h"
#include "tools/reference/reference.h"
#include "tools/simulation/simulated_hosts.h"
#include "tools/simulation/simulated_work.h"
#include "transport/ports/fault_port.h"
#include "transport/simulated/simulated_port.h"

namespace tarpon::testing_support {

inline Fact dead(Rank rank, std::string evidence = "killed by a test") {
  return {.rank = rank, .standing = Standing::dead, .evidence = std::move(evidence)};
}
inline Fact evicted(Rank rank, std::string evidence = "a test says so") {
  return {.rank = rank, .standing = Standing::evicted, .evidence = std::move(evidence)};
}
/// It has made the calls below `next_numbers`, and serves them.
inline Fact left(Rank rank, std::vector<NextNumber> next_numbers) {
  return {.rank = rank,
          .standing = Standing::left,
          .serves = true,
          .next_numbers = std::move(next_numbers)};
}

struct SimulatedJobOptions {
  std::uint16_t ranks = 2;
  std::uint32_t slot_bytes = 512;
  FaultOptions faults = {};
  std::uint64_t retain_bytes = 64ull << 20;
  std::uint64_t seed = 1;
  std::optional<FabricOptions> links = std::nullopt;
  Mechanisms mechanisms = {};
  double max_bytes_per_second = 0;
  std::uint32_t port_flows = 1;
  std::uint32_t flows = 0;  // 0: by trial
  bool detects_silence = true;
  std::vector<std::pmr::memory_resource*> call_memory = {};  // by rank; null: the default
  std::vector<std::uint32_t> remembered_tags = {};           // by rank
  std::uint64_t piece_bytes = 1 << 20;
  /// HostShape::place_bytes of hosts whose ranks share memory; 0: each rank has a host of its own.
  std::uint32_t host_place_bytes = 0;
  std::vector<int> hosts = {};  // by rank: its host; empty: all are on one
};

class SimulatedJob {
 public:
  using Wrap = std::function<std::unique_ptr<Port>(Rank, std::unique_ptr<Port>)>;

  explicit SimulatedJob(const SimulatedJobOptions& options, const Wrap& wrap = nullptr)
      : network_({.ranks = options.ranks,
                  .max_payload = std::max(512u, options.slot_bytes),
                  .jitter = options.links ? Duration::zero() : Duration(10us),
                  .flows = options.port_flows,
                  .seed = options.seed,
                  .links = options.links}),
        work_(options.ranks),
        dead_(options.ranks),
        stopped_(options.ranks) {
    if (options.host_place_bytes > 0) {
      const auto layout = options.hosts.empty() ? std::vector<int>(options.ranks) : options.hosts;
      hosts_ =
          std::make_unique<SimulatedHosts>(hosts::HostLayout::by(layout), options.host_place_bytes);
    }
    for (Rank rank = 0; rank < options.ranks; ++rank) {
      FaultOptions faults = options.faults;
      faults.seed = options.seed * 1000003 + rank;
      std::unique_ptr<Port> port = network_.make_port(rank);
      if (wrap) port = wrap(rank, std::move(port));
      ports_.push_back(std::make_unique<FaultPort>(std::move(port), faults));
      EngineOptions engine;
      engine.endpoint.rank = rank;
      engine.endpoint.world_size = options.ranks;
      engine.endpoint.job = 7;
      engine.endpoint.integrity = TARPON_INTEGRITY_CRC32C;
      engine.endpoint.retain_bytes = options.retain_bytes;
      engine.slot_bytes = options.slot_bytes;
      engine.piece_bytes = options.piece_bytes;
      engine.endpoint.inflow = options.mechanisms.inflow;
      engine.endpoint.sending = options.mechanisms.sending;
      engine.endpoint.flows = options.flows;
      engine.endpoint.detects_silence = options.detects_silence;
      engine.endpoint.max_bytes_per_second = options.max_bytes_per_second;
      engine.mechanisms = options.mechanisms;
      if (hosts_) engine.endpoint.kept_tags = hosts::kOwnTags;
      if (rank < options.remembered_tags.size()) {
        engine.endpoint.remembered_tags = options.remembered_tags[rank];
      }
      if (rank < options.call_memory.size() && options.call_memory[rank] != nullptr) {
        engine.call_memory = options.call_memory[rank];
      }
      engines_.push_back(std::make_unique<Engine>(engine, *ports_.back()));
      if (hosts_) engines_.back()->host_calls().share(*hosts_->of(rank));
    }
  }

  Engine& operator[](Rank rank) { return *engines_[rank]; }
  SimulatedNetwork& network() { return network_; }
  /// REQUIRES: SimulatedJobOptions::host_place_bytes.
  SimulatedHosts& hosts() { return *hosts_; }
  std::uint16_t ranks() const { return static_cast<std::uint16_t>(engines_.size()); }
  Time now() const { return now_; }

  std::shared_ptr<PendingCall> submit(Rank rank, const AllreduceArguments& arguments) {
    return watch(rank, engines_[rank]->submit(arguments, now_));
  }

  /// Notes a call that `rank` has submitted in another way.
  std::shared_ptr<PendingCall> watch(Rank rank, std::shared_ptr<PendingCall> call) {
    calls_.push_back(call);
    callers_.push_back(rank);
    return call;
  }

  /// Calls `step(rank)` after each round of its engine. It returns whether the engine has more to
  /// do.
  void after_each_round(std::function<bool(Rank)> step) { after_round_ = std::move(step); }

  /// Every rank but those in `absent` submits `arguments_of(rank)`.
  template <typename ArgumentsOf>
  std::vector<std::shared_ptr<PendingCall>> submit_all(ArgumentsOf arguments_of,
                                                       const std::vector<Rank>& absent = {}) {
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < ranks(); ++rank) {
      if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
      calls.push_back(submit(rank, arguments_of(rank)));
    }
    return calls;
  }

  /// Of the ranks that live.
  bool all_done() {
    const auto over = [this](std::size_t i) { return dead_[callers_[i]] || calls_[i]->done; };
    while (over_below_ < calls_.size() && over(over_below_)) ++over_below_;
    return over_below_ == calls_.size();
  }

  /// `rank` does nothing any more. The others learn it by tell_dead().
  void kill(Rank rank) { dead_[rank] = true; }
  void tell_dead(Rank rank) {
    for (Rank other = 0; other < ranks(); ++other) {
      if (!dead_[other]) engines_[other]->learn(dead(rank), now_);
    }
  }

  /// `rank` does nothing until it resumes; what is sent to it waits.
  void stop(Rank rank) { stopped_[rank] = true; }
  void resume(Rank rank) { stopped_[rank] = false; }

  /// Runs until every call is done, at most for `most`. False when one is not.
  bool finish(Duration most = 60s) {
    return run_until([this] { return all_done(); }, most);
  }

  void run_for(Duration duration) {
    const Time limit = now_ + duration;
    do progress();
    while (step(limit));
    advance(limit);
  }

  void heal() {
    for (const auto& port : ports_) port->heal();
  }

  /// Work on the buffers of calls takes `times` as long from now on.
  void slow_down(double times) {
    for (SimulatedWork& work : work_) work.slow_down(times);
  }

  /// Whether `rank` is busy with a piece of work.
  bool is_working(Rank rank) const { return work_[rank].until().has_value(); }

  /// Runs until `condition` holds, at most for `most`. False when it does not.
  template <typename Condition>
  bool run_until(Condition condition, Duration most = 60s) {
    const Time limit = now_ + most;
    for (;;) {
      progress();
      if (condition()) return true;
      if (!step(limit)) return false;
    }
  }

 private:
  void progress() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank rank = 0; rank < ranks(); ++rank) {
        if (stopped_[rank]) continue;
        if (dead_[rank]) {
          (void)ports_[rank]->receive(now_);  // or the network would wait for it
        } else {
          moved |= drive(rank);
        }
      }
    }
  }

  /// False when nothing moved.
  bool drive(Rank rank) {
    Engine& engine = *engines_[rank];
    if (!work_[rank].end(engine, now_, now_)) return false;
    bool moved = engine.progress(now_);
    if (after_round_ && after_round_(rank)) moved = true;
    work_[rank].start(engine, now_, now_);
    return moved;
  }

  /// Advances to the next thing that happens. False when that is later than `limit`.
  bool step(Time limit) {
    Time next = network_.next_crossing();
    for (Rank rank = 0; rank < ranks(); ++rank) {
      if (stopped_[rank]) continue;
      if (!dead_[rank] && work_[rank].until()) {
        next = std::min(next, *work_[rank].until());
        continue;
      }
      next = std::min({next, network_.next_arrival(rank), ports_[rank]->next_release()});
      if (!dead_[rank]) next = std::min(next, engines_[rank]->next_deadline());
    }
    if (next > limit) return false;
    advance(std::max(next, now_ + 1us));
    return true;
  }

  void advance(Time to) {
    now_ = std::max(now_, to);
    network_.advance_to(now_);
  }

  SimulatedNetwork network_;
  std::unique_ptr<SimulatedHosts> hosts_;
  std::vector<std::unique_ptr<FaultPort>> ports_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<SimulatedWork> work_;  // by rank
  std::function<bool(Rank)> after_round_;
  std::vector<bool> dead_;
  std::vector<bool> stopped_;
  std::vector<std::shared_ptr<PendingCall>> calls_;
  std::vector<Rank> callers_;   // by call
  std::size_t over_below_ = 0;  // all_done() has seen the calls before this one done
  Time now_{1s};
};

/// The buffers of one call on all ranks, and the result that exact mode must give bit by bit.
template <typename T>
class Buffers {
 public:
  Buffers(std::uint16_t ranks, std::uint64_t count, bool in_place, std::uint64_t seed = 1)
      : in_place_(in_place) {
    Random random(seed);
    for (Rank rank = 0; rank < ranks; ++rank) {
      std::vector<T> input(count);
      for (T& element : input) {
        const auto raw = static_cast<std::int64_t>(random.below(2001)) - 1000;
        if constexpr (std::is_integral_v<T>) {
          element = static_cast<T>(raw);
        } else {
          element = static_cast<T>(static_cast<SumOf<T>>(raw) / SumOf<T>{37});
        }
      }
      outputs.push_back(in_place ? input : std::vector<T>(count));
      inputs.push_back(std::move(input));
    }
  }

  AllreduceArguments arguments(Rank rank, DataType type, ReduceOp function) {
    AllreduceArguments result;
    result.output = outputs[rank].data();
    result.input = in_place_ ? outputs[rank].data() : inputs[rank].data();
    result.count = inputs[rank].size();
    result.type = type;
    result.function = function;
    return result;
  }

  /// Of a bounded call on elements of type T.
  AllreduceArguments bounded_arguments(Rank rank, ReduceOp function,
                                       std::optional<Duration> bound = 20ms) {
    AllreduceArguments result = arguments(rank, data_type_of<T>(), function);
    result.mode = Mode::bounded;
    result.bound = bound;
    result.deadline = 4s;
    return result;
  }

  /// Owner, successor, ..., predecessor, as operation `number` of its tag.
  std::vector<T> expected(ReduceOp function, std::uint32_t number) const {
    const auto ranks = static_cast<std::uint32_t>(inputs.size());
    const std::uint64_t count = inputs[0].size();
    std::vector<T> result(count);
    const ShardLayout layout{count, sizeof(T), ranks};
    for (std::uint32_t shard = 0; shard < ranks; ++shard) {
      const Rank owner = owner_of(shard, number, ranks);
      const Range range = layout.elements(shard);
      for (std::uint64_t i = range.first; i < range.end(); ++i) {
        result[i] = reduce_over<T>(all_ranks(ranks), ranks, owner, function,
                                   [&](Rank rank) { return inputs[rank][i]; });
      }
    }
    return result;
  }

  std::vector<std::vector<T>> inputs, outputs;

 private:
  bool in_place_;
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// The sum that rank `at` has of element `e` after operation 0, if rank 1 of 4 was absent: scaled
/// up, or, in the shard of rank 1, filled.
template <typename T>
double sum_without_rank_1(const Buffers<T>& buffers, Rank at, std::uint64_t e, MissingFill fill) {
  const auto value = [&](Rank from) { return double{float{buffers.inputs[from][e]}}; };
  const ShardLayout layout{buffers.inputs[0].size(), sizeof(T), 4};
  const Range lost = layout.elements(shard_of(1, 0, 4));
  if (e < lost.first || e >= lost.end()) return (value(0) + value(2) + value(3)) * 4 / 3;
  return fill == MissingFill::zero ? 0 : value(at) * 4;
}

}  // namespace tarpon::testing_support
