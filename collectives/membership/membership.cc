#include "collectives/membership/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "collectives/membership/member.h"
#include "collectives/membership/socket_network.h"
#include "collectives/rank_list.h"
#include "transport/clock.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

// Reports may be collected for 1/kCollectingPart of the time that the caller of agree() has. The
// rest is for sending the verdict, and for a new decider.
constexpr int kCollectingPart = 2;

}  // namespace

Rank ShrinkPlan::new_rank(Rank member) const {
  if (member == planner) return 0;
  const std::uint64_t others = members & ~bit(planner);
  return static_cast<Rank>(1 + std::popcount(others & (bit(member) - 1)));
}

/// The thread, and the lock around the member and its network.
class Membership::Impl {
 public:
  Impl(const MembershipOptions& options, std::unique_ptr<mesh::SocketNetwork> network)
      : options_(options), network_(std::move(network)), member_(options, *network_) {}

  void start_thread() {
    if (options_.world_size > 1) thread_ = std::thread([this] { run(); });
  }

  void stop() {
    stopping_ = true;
    network_->wake();
    if (thread_.joinable()) thread_.join();
  }

  void set_handlers(Handlers handlers) {
    {
      const std::lock_guard lock(mutex_);
      handlers_ = std::move(handlers);
      has_handlers_ = true;
    }
    network_->wake();  // delivers the news that they missed
  }

  /// Runs `change` on the member; the thread passes the resulting news to the handlers.
  template <typename Change>
  void apply(Change change) {
    {
      const std::lock_guard lock(mutex_);
      const Time now = monotonic_now();
      change(member_, now);
      member_.advance(now);
    }
    changed_.notify_all();
    network_->wake();
  }

  /// Blocks until `finished` returns true, at most until `until`. Returns whether it did. Calls
  /// `finished` under the lock.
  template <typename Finished>
  bool wait_until(Finished finished, Time until) {
    std::unique_lock lock(mutex_);
    while (!finished(member_)) {
      const Time now = monotonic_now();
      if (now >= until) return false;
      changed_.wait_for(lock, std::min<Duration>(until - now, 1h));
    }
    return true;
  }

  template <typename Look>
  auto look(Look look) {
    const std::lock_guard lock(mutex_);
    return look(std::as_const(member_));
  }

  const MembershipOptions& options() const { return options_; }

 private:
  void run() {
    while (!stopping_) {
      Time next = kNever;
      std::uint64_t doubted = 0;
      {
        const std::lock_guard lock(mutex_);
        const Time now = monotonic_now();
        network_->dispatch(member_.streams(), now);
        doubted = has_handlers_ ? member_.streams().doubted() : 0;
      }
      for (const Rank rank : ranks_of(doubted)) {
        const Time asked = monotonic_now();
        const Time heard = handlers_.last_heard(rank);
        const std::lock_guard lock(mutex_);
        member_.streams().set_last_heard(rank, heard, asked);
      }
      {
        const std::lock_guard lock(mutex_);
        member_.advance(monotonic_now());
      }
      changed_.notify_all();
      tell();
      {
        const std::lock_guard lock(mutex_);
        next = member_.next_deadline();
      }
      // dispatch() may have consumed the wake-up of stop() together with an earlier one.
      if (stopping_) return;
      network_->wait(monotonic_now(), next);
    }
  }

  void tell() {
    while (!stopping_) {
      std::optional<mesh::Member::News> news;
      bool wanted = false;
      {
        const std::lock_guard lock(mutex_);
        if (!has_handlers_) return;
        news = member_.next_news();
        wanted = member_.numbers_wanted();
      }
      if (news) tell(*news);
      if (wanted) {
        const auto numbers = handlers_.next_numbers();
        apply([&](mesh::Member& member, Time now) { member.answer_numbers(numbers, now); });
      }
      if (!news && !wanted) return;
    }
  }

  void tell(const mesh::Member::News& news) {
    switch (news.kind) {
      case mesh::Member::News::Kind::fact:
        return handlers_.learned(news.fact);
      case mesh::Member::News::Kind::aborted:
        return handlers_.aborted(news.rank, news.text);
      case mesh::Member::News::Kind::epoch:
        return handlers_.epoch_decided(news.epoch);
    }
  }

  const MembershipOptions options_;
  std::mutex mutex_;  // guards the member, the network except its wait(), and has_handlers_
  std::condition_variable changed_;
  std::unique_ptr<mesh::SocketNetwork> network_;
  mesh::Member member_;
  Handlers handlers_;
  bool has_handlers_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

Membership::Membership(const MembershipOptions& options,
                       std::unique_ptr<mesh::SocketNetwork> network)
    : impl_(std::make_unique<Impl>(options, std::move(network))) {}

Membership::~Membership() {
  stop();
}

Result<void> Membership::open(Time deadline) {
  impl_->start_thread();
  const MembershipOptions& options = impl_->options();
  const std::uint64_t all = Facts(options.world_size).live() & ~(std::uint64_t{1} << options.rank);
  const auto missing = [&](const mesh::Member& member) { return all & ~member.streams().up(); };
  if (impl_->wait_until([&](const auto& member) { return missing(member) == 0; }, deadline)) {
    return {};
  }
  std::string text;
  impl_->look([&](const mesh::Member& member) {
    for (const Rank rank : ranks_of(missing(member))) {
      const std::string& trouble = member.streams().trouble(rank);
      text += fmt::format("{}no control connection with rank {}{}", text.empty() ? "" : "; ", rank,
                          trouble.empty() ? "" : " (" + trouble + ")");
    }
  });
  return fail(Error::Code::timeout,
              text +
                  ": allow TCP between the hosts of the ranks, on all ports that the kernel "
                  "hands out");
}

void Membership::start(Handlers handlers) {
  impl_->set_handlers(std::move(handlers));
}

void Membership::stop() {
  impl_->stop();
}

Result<void> Membership::leave(std::vector<NextNumber> next_numbers, Time deadline) {
  impl_->apply([&](mesh::Member& member, Time now) { member.leave(std::move(next_numbers), now); });
  const auto all_passed = [](const mesh::Member& member) { return member.not_passed() == 0; };
  if (impl_->wait_until(all_passed, deadline)) return {};
  const auto ranks =
      ranks_of(impl_->look([](const mesh::Member& member) { return member.not_passed(); }));
  if (ranks.empty()) return {};
  return fail(Error::Code::timeout,
              fmt::format("close: {} {} not finished the operations of this rank by the deadline: "
                          "results that this rank owns may be missing there",
                          rendezvous::rank_list(ranks), ranks.size() == 1 ? "has" : "have"));
}

void Membership::leave_at_once() {
  impl_->apply([](mesh::Member& member, Time now) { member.leave({}, now); });
}

void Membership::passed(std::uint64_t ranks) {
  if (ranks == 0) return;
  impl_->apply([&](mesh::Member& member, Time) { member.passed(ranks); });
}

void Membership::set_silent(std::uint64_t silent, std::uint64_t needed) {
  impl_->apply([&](mesh::Member& member, Time now) { member.set_silent(silent, needed, now); });
}

void Membership::wish_eviction(std::uint64_t ranks) {
  if (ranks == 0) return;
  impl_->apply([&](mesh::Member& member, Time now) { member.wish_eviction(ranks, now); });
}

void Membership::note_calls(const std::vector<CodecEvidence>& calls) {
  if (calls.empty()) return;
  impl_->apply([&](mesh::Member& member, Time now) {
    for (const CodecEvidence& call : calls) member.note_call(call, now);
  });
}

std::uint64_t Membership::rejoin_wanted() const {
  return impl_->look(
      [](const mesh::Member& member) { return member.plans(Regroup::rejoin).waiting_others(); });
}

void Membership::abort(const std::string& reason, bool peers_too) {
  impl_->apply([&](mesh::Member& member, Time) { member.abort(reason, peers_too); });
}

StepVerdict Membership::agree(std::uint64_t step, const LossReport& report, Duration deadline) {
  const Time until = after(monotonic_now(), deadline);
  impl_->apply([&](mesh::Member& member, Time now) {
    member.report(step, report, deadline / kCollectingPart, now);
  });
  std::optional<StepVerdict> verdict;
  const auto known = [&](const mesh::Member& member) {
    verdict = member.verdict(step);
    return verdict.has_value();
  };
  if (impl_->wait_until(known, until)) return *std::move(verdict);
  StepVerdict halted;
  halted.step = step;
  halted.detail =
      fmt::format("no verdict of rank {} on step {} within {}",
                  impl_->look([](const mesh::Member& member) { return member.decider(); }), step,
                  rendezvous::duration_text(deadline));
  return halted;
}

Result<ShrinkPlan> Membership::plan(Regroup what,
                                    const std::function<Result<std::string>()>& listen,
                                    Time deadline) {
  const bool shrinks = what == Regroup::shrink;
  const char* const call = shrinks ? "shrink" : "rejoin";
  const auto end = [&](Error error) {  // the others need not wait for this rank
    impl_->apply([&](mesh::Member& member, Time) { member.plans(what).leave(); });
    return fail(std::move(error));
  };
  impl_->apply([&](mesh::Member& member, Time) { member.plans(what).enter(); });
  std::optional<ShrinkPlan> plan;
  std::string excluded;
  bool ready = false;
  const auto news = [&](mesh::Member& member) {
    if (shrinks) excluded = member.excluded();
    ready = member.plans(what).ready();
    plan = member.plans(what).take_plan();
    return plan || ready || !excluded.empty();
  };
  while (impl_->wait_until(news, deadline)) {
    if (plan) {
      impl_->apply([&](mesh::Member& member, Time) {  // sends the messages of take_plan()
        plan->left_out = member.facts().text(~plan->members);
      });
      return *std::move(plan);
    }
    if (!excluded.empty()) {
      return end(Error::make(Error::Code::unavailable, fmt::format("shrink: {}", excluded)));
    }
    auto address = listen();
    if (!address) return end(address.error());
    impl_->apply([&](mesh::Member& member, Time) { member.plans(what).decide(*address); });
  }
  const std::string lacking =
      impl_->look([&](const mesh::Member& member) { return member.plans(what).lacking(); });
  return end(
      Error::make(Error::Code::timeout, fmt::format("{}: {} by the deadline", call, lacking)));
}

}  // namespace tarpon
