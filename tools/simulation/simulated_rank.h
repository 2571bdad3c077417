// One rank of a simulated job: its engine, its ports, its clock, and when it gets to run. Private
// to the simulation's files.
#pragma once

#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/engine/engine.h"
#include "tools/simulation/seal_ledger.h"
#include "tools/simulation/simulated_hosts.h"
#include "tools/simulation/simulated_work.h"
#include "tools/simulation/simulation.h"
#include "transport/ports/port_lines.h"
#include "transport/random.h"
#include "transport/rank_map.h"

namespace tarpon {

/// Of the job, in its packets.
inline constexpr std::uint32_t kCookie = 0x7a11;

/// A monotonic clock with drift and one jump forward, against the network's time.
class RankClock {
 public:
  RankClock() = default;
  RankClock(std::int64_t drift_ppm, Time jump_at, Duration jump)
      : drift_ppm_(drift_ppm), jump_at_(jump_at), jump_(jump) {}

  Time local(Time network) const;
  /// Cancels a jump after `network`.
  void steady_from(Time network) { jump_at_ = jump_at_ > network ? kNever : jump_at_; }
  /// The earliest network time at which the clock shows `local` or more.
  Time network(Time local) const;

 private:
  std::int64_t drift_ppm_ = 0;
  Time jump_at_ = kNever;
  Duration jump_{};
};

/// Refuses a share of the allocations, until it is healed.
class ScarceMemory : public std::pmr::memory_resource {
 public:
  ScarceMemory(double share, std::uint64_t seed) : share_(share), random_(seed) {}
  void heal() { share_ = 0; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  double share_;
  Random random_;
};

class SimulatedRank {
 public:
  /// `ledger`: of sealed packets; this rank is its next port, if the job has a secret. `hosts`:
  /// where the ranks are; null: each has a host of its own.
  SimulatedRank(const SimulationPlan& plan, SimulatedNetwork& network, SealLedger& ledger,
                SimulatedHosts* hosts, Rank rank, const SimulationHooks& hooks);
  ~SimulatedRank();

  /// The earliest time from `now` on at which the rank gets to run. A paused rank does not run, and
  /// a slow one runs only at its beats.
  Time may_run(Time now) const;

  /// When it has something to do.
  Time next_event() const;

  /// Runs the engine until nothing moves, unless a piece of work is under way.
  void run(Time now);

  std::shared_ptr<PendingCall> submit(const CallArguments& arguments, Time now);
  /// In SimulationPlan::part. REQUIRES: it is one of these ranks, and its process is the first one.
  std::shared_ptr<PendingCall> submit_to_part(const CallArguments& arguments, Time now);
  /// Whether another rank has ended the next call of `tag`, as far as this one has heard.
  bool behind(std::uint32_t tag) const { return engine_->behind(tag) > 0; }
  /// Tells the rank, as the control mesh does, that `rank` is dead.
  void peer_dead(Rank rank, Time now);
  /// Tells the rank that `rank`, which may be itself, is evicted.
  void evicted(Rank rank, Time now);
  /// Tells the rank that `rank` has left, and serves the operations below `next_numbers`.
  void peer_left(Rank rank, const std::vector<NextNumber>& next_numbers, Time now);
  /// Tells the rank that `rank` serves no longer.
  void peer_gone(Rank rank, Time now);
  /// The numbers of a goodbye.
  std::vector<NextNumber> unpassed() const { return engine_->unpassed(); }
  /// Whether the calls that `rank` had made before it left have just ended here.
  bool has_passed(Rank rank) { return engine_ && (engine_->take_passed() >> rank & 1) != 0; }
  /// The process ends on the spot: nothing is said, its calls never end.
  void crash();
  /// A new process with the same address, job and rank.
  void restart();
  /// Its port fails, which its engine learns when it runs next. The next process has a good one.
  void break_port(Time now);
  bool runs() const { return engine_ != nullptr; }
  void abort(Time now) { engine_->abort(clock_.local(now)); }
  /// Ends all of its calls, now and later, because `origin` has aborted the communicator.
  void abort_for_good(Rank origin, const std::string& reason, Time now) {
    engine_->abort_for_good(origin, reason, clock_.local(now));
  }
  const CallRules& rules() const { return engine_->rules(); }

  /// No more faults from now on; the clock keeps its drift and what it has jumped.
  void heal();

  struct PortCounts {
    std::uint64_t received = 0;              // handed on to its engines
    std::uint64_t forged = 0, replayed = 0;  // PortStatistics
    /// Counts the packets that an endpoint refuses in every state: `dropped`, for the reasons
    /// `runt` to `epoch`.
    EndpointCounters to_refuse = {};
  };
  PortCounts port_counts() const;
  /// Includes the counters of a crashed engine.
  EndpointCounters counters() const;
  /// What it holds beside open calls. REQUIRES: runs().
  EndpointMemory memory() const { return engine_->endpoint().memory(); }
  const FaultPort& port() const { return *faults_; }
  /// How long it has been busy with pieces of work. A slow rank ends one each time that it runs.
  Duration worked() const { return work_.total() + work_.pieces() * period_; }

 private:
  /// Of the communicator that is split from the job.
  struct Part {
    std::unique_ptr<PortLine> line;
    RankMap ranks;
    std::unique_ptr<Engine> engine;
  };

  Time awake(Time at) const;
  void open_part(std::uint64_t members);
  bool progress(Time local);
  void learn(Fact fact, Time now);
  Port& port_of_job() { return lines_ ? static_cast<Port&>(lines_->first()) : *port_; }
  void learn_usual();
  std::optional<DropReason> refusal(const RxPacket& packet) const;
  void watch(std::span<const RxPacket> packets);

  const Rank rank_;
  SimulatedNetwork& network_;
  SimulatedHosts* const hosts_;                 // null: it shares none
  const std::unique_ptr<ScarceMemory> memory_;  // null: plenty
  RankClock clock_;
  std::vector<Window> pauses_;  // by their starts
  Duration period_{};
  const Duration usual_;         // SimulationPlan::usual
  const std::uint64_t longest_;  // bytes of a bucket
  EngineOptions options_;
  FaultPort* faults_ = nullptr;       // inside of port_
  Port* sealed_ = nullptr;            // the same; null: the job has no secret
  bool broken_ = false;               // port_
  std::unique_ptr<Port> port_;        // null: lines_ has it
  std::unique_ptr<PortLines> lines_;  // of a job from which a communicator is split
  std::unique_ptr<Engine> engine_;    // null after a crash
  std::unique_ptr<Part> part_;        // null: it is in none, or after a crash
  SimulatedWork work_;                // of the engine
  EndpointCounters crashed_;          // of the engine before
  std::uint64_t dead_ = 0;            // ranks that this one considers dead
  EndpointCounters to_refuse_;
  std::uint64_t received_ = 0;
};

}  // namespace tarpon
