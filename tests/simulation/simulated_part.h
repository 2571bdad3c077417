// A communicator of a grid in virtual time: the real engines of its ranks over a simulated network,
// or through the memory of a host, and in place of the control mesh news that take their time.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/driver/call_choice.h"
#include "collectives/driver/call_runner.h"
#include "tools/simulation/seal_ledger.h"
#include "tools/simulation/simulated_hosts.h"
#include "tools/simulation/simulated_rank.h"
#include "transport/random.h"
#include "transport/simulated/simulated_port.h"

namespace tarpon::testing_support {

struct SimulatedPartOptions {
  std::uint16_t ranks = 2;
  bool shares_memory = false;  // all ranks are on one host
  Mechanisms mechanisms = {};
  FaultOptions faults = {};
  std::uint64_t seed = 1;
};

class SimulatedPart {
 public:
  /// `now`: virtual time, which never goes back; outlives the part.
  SimulatedPart(const SimulatedPartOptions& options, const Time& now)
      : now_(now),
        plan_(plan_of(options)),
        layout_(hosts::HostLayout::by(std::vector<int>(options.ranks))),
        hosts_(options.shares_memory
                   ? std::make_unique<SimulatedHosts>(layout_, kPlaceBytes, options.seed)
                   : nullptr),
        network_({.ranks = options.ranks,
                  .max_payload = plan_.slot_bytes,
                  .frames = plan_.frames,
                  .seed = options.seed}),
        news_delays_(options.seed ^ 0x6e657773) {
    for (Rank rank = 0; rank < options.ranks; ++rank) {
      ranks_.push_back(std::make_unique<One>(*this, rank));
    }
  }
  SimulatedPart(const SimulatedPart&) = delete;
  SimulatedPart& operator=(const SimulatedPart&) = delete;

  CallRunner& runner(Rank rank) { return *ranks_[rank]; }
  /// All calls of `rank` so far.
  const std::vector<std::shared_ptr<PendingCall>>& calls(Rank rank) const {
    return ranks_[rank]->calls;
  }
  std::size_t engines() const { return ranks_.size(); }

  /// When run() has something to do.
  Time next() const { return next_; }

  /// Runs all ranks that are due. Calls `ran(rank)` after each of them.
  template <typename Ran>
  void run(Ran ran) {
    network_.advance_to(now_);
    std::vector<Rank> told;
    while (!news_.empty() && news_.begin()->first <= now_) {
      const auto news = news_.extract(news_.begin());
      told.push_back(news.mapped()());
    }
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      const bool heard = std::find(told.begin(), told.end(), rank) != told.end();
      if (!heard && due(rank) > now_) continue;
      ranks_[rank]->run();
      ran(rank);
    }
    next_ = news_.empty() ? kNever : news_.begin()->first;
    for (Rank rank = 0; rank < ranks_.size(); ++rank) next_ = std::min(next_, due(rank));
    next_ = std::max(next_, now_ + 1ns);
  }

 private:
  static constexpr std::uint32_t kPlaceBytes = 16 << 10;

  /// As JobCommunicator.
  struct One final : CallRunner {
    One(SimulatedPart& all, Rank number)
        : part(all),
          self(number),
          rank(all.plan_, all.network_, all.ledger_, all.hosts_.get(), number, {}) {
      note_due();
    }

    std::shared_ptr<PendingCall> submit(const CallArguments& arguments) override {
      const CallChoice choice{.world = part.plan_.ranks,
                              .sharing = part.hosts_ ? &part.layout_ : nullptr};
      part.network_.advance_to(part.now_);
      CallArguments call;
      try {
        call = choice.chosen(arguments);
      } catch (const std::bad_alloc&) {
        call = AllreduceArguments{.tag = arguments.tag, .refusal = AllreduceArguments::kNoMemory};
      }
      calls.push_back(rank.submit(call, part.now_));
      note_due();
      return calls.back();
    }
    std::optional<Refusal> refusal(const AllreduceArguments& arguments) const override {
      return rank.rules().refusal(arguments);
    }
    std::optional<Abort> aborted() const override { return first_abort; }
    void abort(const std::string& reason) override {
      if (first_abort) return;
      hear(self, reason);
      part.tell_others(self, [origin = self, reason](One& other) { other.hear(origin, reason); });
    }
    void leave_at_once() override {
      part.tell_others(
          self, [who = self](One& other) { other.rank.peer_left(who, {}, other.part.now_); });
    }

    void hear(Rank origin, const std::string& reason) {
      if (first_abort) return;
      first_abort = Abort{origin, reason};
      part.network_.advance_to(part.now_);
      rank.abort_for_good(origin, reason, part.now_);
      note_due();
    }
    void run() {
      rank.run(part.now_);
      note_due();
    }
    void note_due() {
      next = rank.next_event();
      part.next_ = std::min(part.next_, std::max(next, part.now_));
    }

    SimulatedPart& part;
    const Rank self;
    SimulatedRank rank;
    std::vector<std::shared_ptr<PendingCall>> calls;
    std::optional<Abort> first_abort;
    Time next = kNever;  // but for what other ranks do
  };

  static SimulationPlan plan_of(const SimulatedPartOptions& options) {
    SimulationPlan plan;
    plan.seed = options.seed;
    plan.ranks = options.ranks;
    plan.frames = 16;
    plan.mechanisms = options.mechanisms;
    plan.faults = options.faults;
    return plan;
  }

  Time due(Rank rank) const {
    const Time rung = hosts_ ? hosts_->rung_at(rank) : kNever;
    return std::min({ranks_[rank]->next, network_.next_arrival(rank), rung});
  }

  /// As the control mesh: each other rank hears it 0.1 to 2.1 ms later.
  void tell_others(Rank self, const std::function<void(One&)>& tell) {
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == self) continue;
      const Time at =
          now_ + 100us + Duration(static_cast<std::int64_t>(news_delays_.below(2'000'000)));
      news_.emplace(at, [this, rank, tell] {
        tell(*ranks_[rank]);
        return rank;
      });
      next_ = std::min(next_, at);
    }
  }

  const Time& now_;
  const SimulationPlan plan_;
  const hosts::HostLayout layout_;
  const std::unique_ptr<SimulatedHosts> hosts_;
  SealLedger ledger_;  // of no ports: the job has no secret
  SimulatedNetwork network_;
  Random news_delays_;
  std::multimap<Time, std::function<Rank()>> news_;  // returns the rank that it tells
  Time next_ = kNever;
  std::vector<std::unique_ptr<One>> ranks_;
};

}  // namespace tarpon::testing_support
