// Deaths, silence, evictions, aborts, verdicts and shrinking, over the control mesh.
#include "collectives/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "collectives/mesh/epochs.h"
#include "collectives/mesh/eviction.h"
#include "collectives/mesh/mesh.h"
#include "collectives/mesh/shrink.h"
#include "collectives/rendezvous/rank_list.h"
#include "transport/clock.h"

namespace tarpon {
namespace {

// Of the time that a caller of agree() has, the part for collecting reports: the rest is for the
// verdict's way, and for a new decider.
constexpr int kCollectingPart = 2;

// Silence after a question that makes a rank suspect.
constexpr Duration kPatience = 300ms;

constexpr std::string_view kEvictedText = "this rank is evicted: rejoin()";

}  // namespace

class Membership::Impl {
 public:
  Impl(Rank rank, std::uint32_t world_size, std::unique_ptr<mesh::Mesh> mesh,
       const std::vector<LossBudget>& budgets, bool epochs)
      : mesh_(std::move(mesh)),
        agreement_(rank, world_size, budgets),
        shrinking_(rank, world_size, Regroup::shrink),
        rejoining_(rank, world_size, Regroup::rejoin),
        eviction_(rank, world_size),
        epochs_(rank, world_size, epochs),
        rank_(rank),
        asked_(world_size, kNever),
        suspect_(world_size) {}

  ~Impl() { stop(); }

  void start(Handlers handlers) {
    if (mesh_ == nullptr) return;
    handlers_ = std::move(handlers);
    mesh_->start({.gone = [this](Rank rank, const std::string& why) { gone(rank, why); },
                  .frame = [this](Rank from, const mesh::Frame& frame) { take(from, frame); },
                  .tick = [this](Time now) { return tick(now); }});
  }

  void say_goodbye() {
    if (mesh_ != nullptr) mesh_->say_goodbye();
  }

  void stop() {
    if (mesh_ == nullptr) return;
    mesh_->say_goodbye();
    mesh_->stop();
  }

  void ask(std::uint64_t ranks) {
    if (mesh_ == nullptr || ranks == 0) return;
    const std::lock_guard lock(mutex_);
    bool asked = false;
    for (Rank rank = 0; rank < asked_.size(); ++rank) {
      if (((ranks & ~eviction_.evicted()) >> rank & 1) == 0 || suspect_[rank] ||
          asked_[rank] != kNever)
        continue;
      asked_[rank] = monotonic_now();
      mesh_->send(rank, mesh::FrameKind::ping, {});
      asked = true;
    }
    if (asked) mesh_->wake();  // its thread keeps the time
  }

  void wish_eviction(std::uint64_t ranks) {
    if (mesh_ == nullptr || ranks == 0) return;
    {
      const std::lock_guard lock(mutex_);
      eviction_.wish(ranks);
      send_outbox();
    }
    mesh_->wake();  // its thread tells the handler
  }

  void note_losses(const std::vector<double>& shares) {
    if (mesh_ == nullptr || shares.empty()) return;
    const Time now = monotonic_now();
    const std::lock_guard lock(mutex_);
    bool changed = false;
    for (const double share : shares) changed |= epochs_.note_loss(share, now);
    if (!changed) return;
    send_outbox();
    mesh_->wake();  // its thread keeps the time, and answers
  }

  std::uint64_t rejoin_wanted() {
    const std::lock_guard lock(mutex_);
    return rejoining_.waiting_others();
  }

  void abort(const std::string& reason, bool peers_too) {
    if (peers_too && mesh_ != nullptr) {
      mesh_->send_all(mesh::FrameKind::abort, reason.substr(0, mesh::kLargestBody));
    }
    end_agreeing("this rank aborted: " + reason);
  }

  StepVerdict agree(std::uint64_t step, const LossReport& report, Duration deadline) {
    const Time now = monotonic_now();
    const Time until = after(now, deadline);
    std::unique_lock lock(mutex_);
    if (const auto over = why_over()) return halted(step, *over);
    agreement_.report(step, report, deadline / kCollectingPart, now);
    send_outbox();
    // The mesh's thread keeps the decider's time.
    if (mesh_ != nullptr && agreement_.next_deadline() != kNever) mesh_->wake();
    std::optional<StepVerdict> verdict;
    while (!(verdict = agreement_.verdict(step)) && monotonic_now() < until && !why_over()) {
      wait_for_news(lock, until);
    }
    if (verdict) return *std::move(verdict);
    if (const auto over = why_over()) return halted(step, *over);
    return halted(
        step, fmt::format("no verdict of rank {} on step {} within {}", agreement_.decider(), step,
                          rendezvous::duration_text(deadline)));
  }

  Result<ShrinkPlan> plan(Regroup what, const std::function<Result<std::string>()>& listen,
                          Time deadline) {
    std::unique_lock lock(mutex_);
    const bool shrinks = what == Regroup::shrink;
    mesh::Shrinking& rules = shrinks ? shrinking_ : rejoining_;
    rules.enter();
    while (true) {
      send(rules.take_outbox());
      if (shrinks && evicted()) {
        rules.leave();
        return fail(Error::Code::unavailable, fmt::format("shrink: {}", kEvictedText));
      }
      if (rules.ready()) {
        auto address = listen();
        if (!address) {
          rules.leave();  // the others need not wait for this rank
          return fail(address.error());
        }
        rules.decide(*address);
        send(rules.take_outbox());
      }
      if (const auto plan = rules.take_plan()) return *plan;
      if (monotonic_now() >= deadline) break;
      wait_for_news(lock, deadline);
    }
    rules.leave();
    return fail(Error::Code::timeout, fmt::format("{}: {} by the deadline",
                                                  shrinks ? "shrink" : "rejoin", rules.lacking()));
  }

 private:
  void gone(Rank rank, const std::string& evidence) {
    {
      const std::lock_guard lock(mutex_);
      agreement_.gone(rank, monotonic_now());
      shrinking_.gone(rank);
      rejoining_.gone(rank);
      agreement_.set_rejoin(rejoining_.waiting_others());
      eviction_.gone(rank);
      epochs_.gone(rank, monotonic_now());
      asked_[rank] = kNever;
      suspect_[rank] = true;  // and not asked again
      send_outbox();
    }
    changed_.notify_all();
    tell_epochs();
    if (!evidence.empty()) handlers_.dead(rank, evidence);
  }

  void take(Rank from, const mesh::Frame& frame) {
    heard(from);
    switch (frame.kind) {
      case mesh::FrameKind::abort:
        end_agreeing(fmt::format("rank {} aborted: {}", from, frame.body));
        handlers_.aborted(from, frame.body);
        return;
      case mesh::FrameKind::agreement: {
        const auto message = decode_agreement(frame.body);
        if (!message) return;
        const std::lock_guard lock(mutex_);
        if (message->kind == AgreementMessage::Kind::verdict) {
          rejoining_.told_of(message->verdict.rejoin);
          agreement_.set_rejoin(rejoining_.waiting_others());
        }
        agreement_.receive(from, *message, monotonic_now());
        send_outbox();
        break;
      }
      case mesh::FrameKind::shrink: {
        const std::lock_guard lock(mutex_);
        shrinking_.entered(from);
        break;
      }
      case mesh::FrameKind::shrink_plan: {
        const std::lock_guard lock(mutex_);
        shrinking_.planned(from, frame.body);
        break;
      }
      case mesh::FrameKind::rejoin: {
        const std::lock_guard lock(mutex_);
        rejoining_.entered(from);
        agreement_.set_rejoin(rejoining_.waiting_others());
        break;
      }
      case mesh::FrameKind::rejoin_plan: {
        const std::lock_guard lock(mutex_);
        rejoining_.planned(from, frame.body);
        break;
      }
      case mesh::FrameKind::evict_wish: {
        const std::lock_guard lock(mutex_);
        eviction_.take_wish(from, frame.body);
        break;
      }
      case mesh::FrameKind::evict: {
        const std::lock_guard lock(mutex_);
        eviction_.take_eviction(frame.body);
        break;
      }
      case mesh::FrameKind::epoch_level:
      case mesh::FrameKind::epoch_question:
      case mesh::FrameKind::epoch_answer:
      case mesh::FrameKind::epoch_record: {
        {
          const std::lock_guard lock(mutex_);
          epochs_.take(from, frame, monotonic_now());
          send_outbox();
        }
        tell_epochs();
        mesh_->wake();  // its next deadline may be an earlier one
        return;
      }
      case mesh::FrameKind::ping:
        mesh_->send(from, mesh::FrameKind::pong, {});
        return;
      case mesh::FrameKind::pong:
        return;  // heard
      case mesh::FrameKind::goodbye:
      case mesh::FrameKind::lost:
        return;  // the mesh's own
    }
    tell_evictions();
    changed_.notify_all();
  }

  /// On the mesh's thread.
  void tell_evictions() {
    std::vector<mesh::Eviction::News> news;
    {
      const std::lock_guard lock(mutex_);
      news = eviction_.take_news();
      for (const mesh::Eviction::News& one : news) {
        epochs_.gone(one.rank, monotonic_now());
        if (one.rank == rank_) continue;
        agreement_.gone(one.rank, monotonic_now());
        shrinking_.gone(one.rank);
        asked_[one.rank] = kNever;
      }
      send_outbox();
    }
    for (const auto& [rank, decided_by] : news) {
      handlers_.evicted(rank, fmt::format("it held back what others retain beyond their limit, "
                                          "says rank {}",
                                          decided_by));
    }
  }

  /// On the mesh's thread.
  void tell_epochs() {
    while (true) {
      std::optional<EpochRecord> record;
      bool asked = false;
      {
        const std::lock_guard lock(mutex_);
        record = epochs_.take_record();
        asked = epochs_.asked();
      }
      if (record) handlers_.epoch_decided(*record);
      if (!asked && !record) return;
      if (!asked) continue;
      const std::vector<EpochRecord::Start> numbers = handlers_.next_numbers();
      const std::lock_guard lock(mutex_);
      epochs_.answer(numbers, monotonic_now());
      send_outbox();
    }
  }

  void heard(Rank from) {
    {
      const std::lock_guard lock(mutex_);
      asked_[from] = kNever;
      if (!suspect_[from]) return;
      suspect_[from] = false;
    }
    handlers_.suspect(from, false);
  }

  Time tick(Time now) {
    std::vector<Rank> silent;
    Time next = kNever;
    {
      const std::lock_guard lock(mutex_);
      agreement_.tick(now);
      changed_.notify_all();
      epochs_.tick(now);
      send_outbox();
      next = std::min(agreement_.next_deadline(), epochs_.next_deadline());
      for (Rank rank = 0; rank < asked_.size(); ++rank) {
        if (asked_[rank] == kNever) continue;
        if (now < asked_[rank] + kPatience) {
          next = std::min(next, asked_[rank] + kPatience);
          continue;
        }
        asked_[rank] = kNever;
        suspect_[rank] = true;
        silent.push_back(rank);
      }
    }
    for (const Rank rank : silent) handlers_.suspect(rank, true);
    tell_evictions();
    tell_epochs();
    return next;
  }

  // REQUIRES, of the following: the mutex.
  void wait_for_news(std::unique_lock<std::mutex>& lock, Time until) {
    const Time now = monotonic_now();
    changed_.wait_for(lock, std::min<Duration>(until - std::min(now, until), 1h));
  }

  void send_outbox() {
    for (const auto& [to, message] : agreement_.take_outbox()) {
      mesh_->send(to, mesh::FrameKind::agreement, encode(message));
    }
    send(eviction_.take_outbox());
    send(epochs_.take_outbox());
  }

  void send(const std::vector<std::pair<Rank, mesh::Frame>>& frames) {
    for (const auto& [to, frame] : frames) mesh_->send(to, frame.kind, frame.body);
  }

  /// The first abort counts, as for calls.
  void end_agreeing(std::string why) {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_.empty()) aborted_ = std::move(why);
    }
    changed_.notify_all();
  }

  /// Why no step is agreed on any more.
  std::optional<std::string> why_over() const {
    if (evicted()) return std::string(kEvictedText);
    return aborted_.empty() ? std::nullopt : std::optional(aborted_);
  }

  bool evicted() const { return (eviction_.evicted() >> rank_ & 1) != 0; }

  static StepVerdict halted(std::uint64_t step, std::string why) {
    StepVerdict verdict;
    verdict.step = step;
    verdict.detail = std::move(why);
    return verdict;
  }

  std::unique_ptr<mesh::Mesh> mesh_;
  Handlers handlers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Agreement agreement_;
  mesh::Shrinking shrinking_;
  mesh::Shrinking rejoining_;
  mesh::Eviction eviction_;
  mesh::Epochs epochs_;
  std::string aborted_;  // by whom, why; empty: nobody has
  const Rank rank_;
  std::vector<Time> asked_;    // by rank; kNever: it owes no answer
  std::vector<bool> suspect_;  // by rank; also those that are gone
};

Membership::Membership(Rank rank, std::uint32_t world_size, std::unique_ptr<mesh::Mesh> mesh,
                       const std::vector<LossBudget>& budgets, bool epochs)
    : impl_(std::make_unique<Impl>(rank, world_size, std::move(mesh), budgets, epochs)) {}
Membership::~Membership() = default;

void Membership::start(Handlers handlers) {
  impl_->start(std::move(handlers));
}
void Membership::say_goodbye() {
  impl_->say_goodbye();
}
void Membership::stop() {
  impl_->stop();
}
void Membership::ask(std::uint64_t ranks) {
  impl_->ask(ranks);
}
void Membership::abort(const std::string& reason, bool peers_too) {
  impl_->abort(reason, peers_too);
}
StepVerdict Membership::agree(std::uint64_t step, const LossReport& report, Duration deadline) {
  return impl_->agree(step, report, deadline);
}
Result<ShrinkPlan> Membership::plan(Regroup what,
                                    const std::function<Result<std::string>()>& listen,
                                    Time deadline) {
  return impl_->plan(what, listen, deadline);
}
void Membership::wish_eviction(std::uint64_t ranks) {
  impl_->wish_eviction(ranks);
}
void Membership::note_losses(const std::vector<double>& shares) {
  impl_->note_losses(shares);
}
std::uint64_t Membership::rejoin_wanted() const {
  return impl_->rejoin_wanted();
}

}  // namespace tarpon
