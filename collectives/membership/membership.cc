#include "collectives/membership/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "collectives/membership/hub.h"
#include "collectives/rank_list.h"
#include "transport/clock.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

// Reports may be collected for 1/kCollectingPart of the time that the caller of agree() has. The
// rest is for sending the verdict, and for a new decider.
constexpr int kCollectingPart = 2;

// Between two questions of open() whether another rank has failed.
constexpr Duration kBetweenLooks = 20ms;

constexpr char kJobGone[] = "the communicator of the job was destroyed";

}  // namespace

Rank ShrinkPlan::new_rank(Rank member) const {
  if (member == planner) return 0;
  const std::uint64_t others = members & ~bit(planner);
  return static_cast<Rank>(1 + std::popcount(others & (bit(member) - 1)));
}

Membership::Membership(const MembershipOptions& options,
                       std::unique_ptr<mesh::SocketNetwork> network)
    : hub_(std::make_shared<mesh::Hub>(options, std::move(network))),
      part_(hub_->add_job(options)) {}

Membership::Membership(std::shared_ptr<mesh::Hub> hub, std::unique_ptr<mesh::Part> part)
    : hub_(std::move(hub)), part_(std::move(part)) {}

std::unique_ptr<Membership> Membership::split(const MembershipOptions& options,
                                              std::vector<Rank> members) const {
  auto part = hub_->add_split(options, std::move(members));
  if (!part) return nullptr;
  return std::unique_ptr<Membership>(new Membership(hub_, std::move(part)));
}

Membership::~Membership() {
  stop();
  hub_->remove(*part_);
}

Result<void> Membership::open(Time deadline, const std::function<bool()>& is_over) {
  return part_->split != nullptr ? open_line(deadline) : open_job(deadline, is_over);
}

/// open() of a job.
Result<void> Membership::open_job(Time deadline, const std::function<bool()>& is_over) {
  if (part_->options.world_size == 1) return {};
  const std::uint64_t all = Facts(part_->options.world_size).live() & ~bit(part_->options.rank);
  if (auto started = hub_->start_thread(); !started) return started;
  std::uint64_t missing = 0;
  std::optional<Error> shortage;
  const auto decided = [&](const auto&) {
    missing = all & ~part_->line.up();
    shortage = hub_->shortage();
    return missing == 0 || shortage;
  };
  for (Time now = monotonic_now();; now = monotonic_now()) {
    const Time until = is_over ? std::min(deadline, now + kBetweenLooks) : deadline;
    if (hub_->wait_until(*part_, decided, until)) break;
    if (now >= deadline || hub_->stopped()) break;
    if (is_over && is_over()) {
      return fail(Error::Code::unavailable, missing_text(missing) + ": another rank has failed");
    }
  }
  if (missing == 0) return {};
  if (shortage) return fail(*std::move(shortage));
  return fail(Error::Code::timeout, missing_text(missing) +
                                        ": allow TCP between the hosts of the ranks, on all ports "
                                        "that the kernel hands out");
}

/// "no control connection with rank 3 (Connection refused)", for each of `missing`.
std::string Membership::missing_text(std::uint64_t missing) const {
  return hub_->look_at_mesh([&](const mesh::Mesh& mesh) {
    std::string text;
    for (const Rank rank : ranks_of(missing)) {
      const std::string& trouble = mesh.streams().trouble(rank);
      text += fmt::format("{}no control connection with rank {}{}", text.empty() ? "" : "; ", rank,
                          trouble.empty() ? "" : " (" + trouble + ")");
    }
    return text;
  });
}

/// open() of a communicator that is split from a job.
Result<void> Membership::open_line(Time deadline) {
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): of a line it is set
  mesh::PartLine& line = *part_->split;
  const std::uint64_t all = Facts(part_->options.world_size).live() & ~bit(part_->options.rank);
  hub_->apply(*part_, [&](mesh::Member&, Time) { line.open(); });
  std::uint64_t missing = 0, gone = 0;
  std::optional<Rank> conflict;
  hub_->wait_until(
      *part_,
      [&](const mesh::Member& member) {
        missing = all & ~line.met();
        gone = missing & ~member.facts().live();
        conflict = line.conflict();
        return missing == 0 || gone != 0 || conflict.has_value();
      },
      deadline);
  if (missing == 0) return {};
  if (conflict) {
    return fail(Error::Code::mismatch,
                fmt::format("split: rank {} splits communicator {} with other members: all of them "
                            "give the same list",
                            *conflict, part_->options.communicator));
  }
  std::vector<Rank> ranks;
  for (const Rank rank : ranks_of(gone != 0 ? gone : missing)) {
    ranks.push_back(line.members()[rank]);
  }
  return fail(gone != 0 ? Error::Code::unavailable : Error::Code::timeout,
              fmt::format("split: {} {} communicator {}{}", rendezvous::rank_list(ranks),
                          gone != 0           ? "left the job or died before it opened"
                          : ranks.size() == 1 ? "has not split off"
                                              : "have not split off",
                          part_->options.communicator, gone != 0 ? "" : " by the deadline"));
}

void Membership::start(Handlers handlers) {
  hub_->set_handlers(*part_, std::move(handlers));
}

void Membership::stop() {
  if (part_->split == nullptr) hub_->stop_thread();
  hub_->close(*part_);
}

Result<void> Membership::leave(std::vector<NextNumber> next_numbers, Time deadline) {
  hub_->apply(*part_,
              [&](mesh::Member& member, Time now) { member.leave(std::move(next_numbers), now); });
  const auto all_passed = [](const mesh::Member& member) { return member.not_passed() == 0; };
  if (hub_->wait_until(*part_, all_passed, deadline)) return {};
  const auto ranks =
      ranks_of(hub_->look(*part_, [](const mesh::Member& member) { return member.not_passed(); }));
  if (ranks.empty()) return {};
  if (hub_->stopped()) return fail(Error::Code::unavailable, std::string("close: ") + kJobGone);
  return fail(Error::Code::timeout,
              fmt::format("close: {} {} not finished the operations of this rank by the deadline: "
                          "results that this rank owns may be missing there",
                          rendezvous::rank_list(ranks), ranks.size() == 1 ? "has" : "have"));
}

void Membership::leave_at_once() {
  hub_->apply(*part_, [](mesh::Member& member, Time now) { member.leave({}, now); });
}

void Membership::passed(std::uint64_t ranks) {
  if (ranks == 0) return;
  hub_->apply(*part_, [&](mesh::Member& member, Time) { member.passed(ranks); });
}

void Membership::set_silent(std::uint64_t silent, std::uint64_t needed) {
  hub_->apply(*part_,
              [&](mesh::Member& member, Time now) { member.set_silent(silent, needed, now); });
}

void Membership::wish_eviction(std::uint64_t ranks) {
  if (ranks == 0) return;
  hub_->apply(*part_, [&](mesh::Member& member, Time now) { member.wish_eviction(ranks, now); });
}

void Membership::note_calls(const std::vector<CallEvidence>& calls) {
  if (calls.empty()) return;
  hub_->apply(*part_, [&](mesh::Member& member, Time now) {
    for (const CallEvidence& call : calls) member.note_call(call, now);
  });
}

std::uint64_t Membership::rejoin_wanted() const {
  return hub_->look(*part_, [](const mesh::Member& member) {
    return member.plans(Regroup::rejoin).waiting_others();
  });
}

void Membership::abort(const std::string& reason, bool peers_too) {
  hub_->apply(*part_, [&](mesh::Member& member, Time) { member.abort(reason, peers_too); });
}

void Membership::receive(const std::vector<AgreementPacket>& packets) {
  if (packets.empty()) return;
  hub_->apply(*part_, [&](mesh::Member& member, Time now) {
    for (const AgreementPacket& packet : packets) member.receive(packet, now);
  });
}

StepVerdict Membership::agree(std::uint64_t step, const LossReport& report, Duration deadline) {
  const Time until = after(monotonic_now(), deadline);
  hub_->apply(*part_, [&](mesh::Member& member, Time now) {
    member.report(step, report, deadline / kCollectingPart, now);
  });
  std::optional<StepVerdict> verdict;
  const auto known = [&](const mesh::Member& member) {
    verdict = member.verdict(step);
    return verdict.has_value();
  };
  const bool has_come = hub_->wait_until(*part_, known, until);
  if (!has_come || verdict->verdict == Verdict::halt) {  // perhaps of this rank alone
    hub_->apply(*part_, [&](mesh::Member& member, Time) { member.give_up(step); });
  }
  if (has_come) return *std::move(verdict);
  StepVerdict halted;
  halted.step = step;
  if (hub_->stopped()) {
    halted.detail = kJobGone;
    return halted;
  }
  halted.detail =
      fmt::format("no verdict of rank {} on step {} within {}",
                  hub_->look(*part_, [](const mesh::Member& member) { return member.decider(); }),
                  step, rendezvous::duration_text(deadline));
  return halted;
}

Result<ShrinkPlan> Membership::plan(Regroup what,
                                    const std::function<Result<std::string>()>& listen,
                                    Time deadline) {
  const bool shrinks = what == Regroup::shrink;
  const char* const call = shrinks ? "shrink" : "rejoin";
  const auto end = [&](Error error) {  // the others need not wait for this rank
    hub_->apply(*part_, [&](mesh::Member& member, Time now) { member.stop_waiting(what, now); });
    return fail(std::move(error));
  };
  hub_->apply(*part_, [&](mesh::Member& member, Time now) { member.wait_for_plan(what, now); });
  std::optional<ShrinkPlan> plan;
  std::string excluded;
  bool ready = false;
  const auto news = [&](mesh::Member& member) {
    if (shrinks) excluded = member.excluded();
    ready = member.plans(what).ready();
    plan = member.plans(what).take_plan();
    return plan || ready || !excluded.empty();
  };
  while (hub_->wait_until(*part_, news, deadline)) {
    if (plan) {
      hub_->apply(*part_,
                  [&](mesh::Member& member, Time now) {  // sends the messages of take_plan()
                    plan->left_out = member.facts().text(~plan->members);
                    member.stop_waiting(what, now);
                  });
      return *std::move(plan);
    }
    if (!excluded.empty()) {
      return end(Error::make(Error::Code::unavailable, fmt::format("shrink: {}", excluded)));
    }
    auto address = listen();
    if (!address) return end(address.error());
    hub_->apply(*part_, [&](mesh::Member& member, Time) { member.plans(what).decide(*address); });
  }
  const std::string lacking =
      hub_->look(*part_, [&](const mesh::Member& member) { return member.plans(what).lacking(); });
  return end(
      Error::make(Error::Code::timeout, fmt::format("{}: {} by the deadline", call, lacking)));
}

}  // namespace tarpon
