#include "collectives/membership/shrink.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>

#include "collectives/rank_list.h"

namespace tarpon::mesh {
namespace {

/// "MEMBERS ADDRESS", the members as a hexadecimal mask.
std::string encode(const ShrinkPlan& plan) {
  return fmt::format("{:x} {}", plan.members, plan.address);
}

std::optional<ShrinkPlan> decode(const std::string& text) {
  ShrinkPlan plan;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, plan.members, 16);
  if (error != std::errc() || at == end || *at != ' ') return std::nullopt;
  plan.address.assign(at + 1, end);
  return plan;
}

}  // namespace

Shrinking::Shrinking(Rank rank, const Facts& facts, Regroup what)
    : rank_(rank), facts_(facts), what_(what), entries_(facts.world_size()) {}

std::uint64_t Shrinking::members() const {
  if (what_ == Regroup::shrink) return facts_.live();
  const std::uint64_t awaited = facts_.can_rejoin(), dead = facts_.ranks(Standing::dead);
  return awaited != 0 ? awaited | (dead & entered_) : dead & (entered_ | ~gone_);
}

/// world_size() when there are no members.
Rank Shrinking::planner() const {
  std::uint64_t from = what_ == Regroup::shrink ? facts_.live() : facts_.can_rejoin();
  if (from == 0) from = members();
  if (from == 0) return static_cast<Rank>(facts_.world_size());
  return static_cast<Rank>(std::countr_zero(from));
}

void Shrinking::enter() {
  waiting_ = true;
  plan_.reset();
  decided_.reset();
  if (++entry_ == 0) entry_ = 1;
  entered_ |= bit(rank_);
  for (Rank peer = 0; peer < facts_.world_size(); ++peer) tell(peer);
}

void Shrinking::leave() {
  if (!std::exchange(waiting_, false)) return;
  for (Rank peer = 0; peer < facts_.world_size(); ++peer) tell(peer);
}

void Shrinking::tell(Rank rank) {
  if (rank == rank_) return;
  const FrameKind kind = what_ == Regroup::rejoin ? FrameKind::rejoin : FrameKind::shrink;
  outbox_.emplace_back(rank, Frame{kind, std::string(1, static_cast<char>(waiting_ ? entry_ : 0))});
}

void Shrinking::send_plan(Rank rank) {
  if (rank == rank_ || (decided_->members & bit(rank)) == 0) return;
  const bool rejoin = what_ == Regroup::rejoin;
  outbox_.emplace_back(
      rank, Frame{rejoin ? FrameKind::rejoin_plan : FrameKind::shrink_plan, encode(*decided_)});
}

void Shrinking::greet(Rank rank) {
  if (entry_ != 0) tell(rank);
}

void Shrinking::receive(Rank from, std::string_view body) {
  if (body.size() != 1) return;
  if (body[0] == 0) {
    entered_ &= ~bit(from);
    told_ &= ~bit(from);
    return;
  }
  entered_ |= bit(from);
  entries_[from] = static_cast<std::uint8_t>(body[0]);
  if (decided_ && entries_[from] == planned_[from]) send_plan(from);
}

void Shrinking::gone(Rank rank) {
  gone_ |= bit(rank);
  entered_ &= ~bit(rank);
  told_ &= ~bit(rank);
}

void Shrinking::planned(Rank from, const std::string& text) {
  auto plan = decode(text);
  if (!waiting_ || !plan) return;
  const std::uint64_t both = bit(rank_) | bit(from);
  if ((plan->members & both) != both) return;
  const bool planner_is_known = what_ == Regroup::shrink || facts_.can_rejoin() != 0;
  if (planner_is_known && from != planner()) return;
  plan->planner = from;
  plan_ = std::move(plan);
}

bool Shrinking::ready() const {
  return waiting_ && planner() == rank_ && (members() & ~entered_) == 0;
}

void Shrinking::decide(const std::string& address) {
  plan_ = decided_ = ShrinkPlan{.members = members(), .planner = rank_, .address = address};
  planned_ = entries_;
  for (Rank peer = 0; peer < facts_.world_size(); ++peer) send_plan(peer);
}

std::optional<ShrinkPlan> Shrinking::take_plan() {
  if (!plan_) return std::nullopt;
  entered_ = told_ = 0;
  leave();  // a repeated plan may have come behind our own repeated message
  return std::exchange(plan_, std::nullopt);
}

std::uint64_t Shrinking::waiting_others() const {
  return (entered_ | told_) & (members() | facts_.can_rejoin()) & ~bit(rank_);
}

std::uint64_t Shrinking::waiting() const {
  return waiting_others() | (waiting_ ? bit(rank_) : 0);
}

std::uint64_t Shrinking::needed() const {
  if (!waiting_) return 0;
  const std::uint64_t missing = members() & ~entered_;
  if (missing != 0 || planner() == rank_ || planner() >= facts_.world_size()) return missing;
  return bit(planner());
}

std::string Shrinking::lacking() const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < facts_.world_size(); ++rank) {
    if ((members() & ~entered_ & bit(rank)) != 0) ranks.push_back(rank);
  }
  if (!ranks.empty()) return fmt::format("{} did not come", rendezvous::rank_list(ranks));
  if (planner() >= facts_.world_size()) return "every rank has left";
  return planner() == rank_ ? "no plan" : fmt::format("no plan from rank {}", planner());
}

}  // namespace tarpon::mesh
