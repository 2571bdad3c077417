// Agreeing on who is in a shrunk communicator.
#include "collectives/mesh/shrink.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>

#include "collectives/rendezvous/rank_list.h"

namespace tarpon::mesh {
namespace {

std::uint64_t bit(Rank rank) {
  return 1ull << rank;
}

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

Shrinking::Shrinking(Rank rank, std::uint32_t world_size, Regroup what)
    : rank_(rank), what_(what), live_(world_size >= 64 ? ~0ull : (1ull << world_size) - 1) {}

Rank Shrinking::lowest() const {
  return static_cast<Rank>(std::countr_zero(live_));
}

void Shrinking::tell() {
  if (what_ == Regroup::rejoin) {
    for (Rank peer = 0; peer < 64; ++peer) {
      if (peer == rank_ || (live_ & bit(peer)) == 0) continue;
      outbox_.emplace_back(peer, Frame{FrameKind::rejoin, {}});
    }
  } else if (lowest() != rank_) {
    outbox_.emplace_back(lowest(), Frame{FrameKind::shrink, {}});
  }
}

void Shrinking::enter() {
  waiting_ = true;
  plan_.reset();
  entered_ |= bit(rank_);
  tell();
}

void Shrinking::entered(Rank from) {
  entered_ |= bit(from);
}

void Shrinking::gone(Rank rank) {
  const Rank before = lowest();
  live_ &= ~bit(rank);
  entered_ &= ~bit(rank);
  if (waiting_ && lowest() != before) tell();
}

void Shrinking::planned(Rank from, const std::string& text) {
  auto plan = decode(text);
  if (!waiting_ || from != lowest() || !plan || (plan->members & bit(rank_)) == 0) return;
  plan_ = std::move(plan);
}

bool Shrinking::ready() const {
  return waiting_ && lowest() == rank_ && (live_ & ~entered_) == 0;
}

void Shrinking::decide(const std::string& address) {
  plan_ = ShrinkPlan{live_, address};
  const bool rejoin = what_ == Regroup::rejoin;
  const FrameKind kind = rejoin ? FrameKind::rejoin_plan : FrameKind::shrink_plan;
  for (Rank peer = 0; peer < 64; ++peer) {
    if (peer == rank_ || (live_ & bit(peer)) == 0) continue;
    outbox_.emplace_back(peer, Frame{kind, encode(*plan_)});
  }
}

std::optional<ShrinkPlan> Shrinking::take_plan() {
  if (!plan_) return std::nullopt;
  waiting_ = false;
  entered_ = told_ = 0;
  return std::exchange(plan_, std::nullopt);
}

std::string Shrinking::lacking() const {
  if (lowest() != rank_) return fmt::format("no plan of rank {}", lowest());
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < 64; ++rank) {
    if ((live_ & ~entered_ & bit(rank)) != 0) ranks.push_back(rank);
  }
  if (ranks.empty()) return "no plan";
  return fmt::format("{} did not come", rendezvous::rank_list(ranks));
}

}  // namespace tarpon::mesh
