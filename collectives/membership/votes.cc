#include "collectives/membership/votes.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "collectives/membership/frame.h"
#include "collectives/rank_list.h"

namespace tarpon::mesh {
namespace {

constexpr std::size_t kBodyBytes = 24;
constexpr Duration kShortestRepeat = 1ms;

}  // namespace

Votes::Votes(Rank rank, const Facts& facts, Duration dead_after)
    : rank_(rank),
      facts_(facts),
      dead_after_(dead_after),
      repeat_every_(
          std::clamp<Duration>(dead_after / (2 * kRepeats), kShortestRepeat, kRepeatEvery)),
      rows_(facts.world_size()),
      ballots_(facts.world_size()) {}

void Votes::set_silent(std::uint64_t silent, std::uint64_t needed, Time now) {
  for (Rank rank = 0; rank < rows_.size(); ++rank) {
    Row& row = rows_[rank];
    const bool is_silent = rank != rank_ && facts_.is_live(rank) && (silent & bit(rank)) != 0;
    const bool is_needed = is_silent && (needed & bit(rank)) != 0;
    if (!is_silent) {
      row.silent_before = Duration{};
    } else if (!is_needed && row.silent_since != kNever) {
      row.silent_before += std::max(now - row.silent_since, Duration{});
    }
    row.silent_since = is_needed ? std::min(row.silent_since, now) : kNever;
  }
}

void Votes::set_needed(std::uint64_t ranks, Time now) {
  std::uint64_t asked = 0;
  for (Rank rank = 0; rank < rows_.size(); ++rank) {
    Time& since = rows_[rank].unheard_since;
    const bool needed = rank != rank_ && facts_.is_live(rank) && (ranks & bit(rank)) != 0;
    since = !needed ? kNever : std::min(since, now);
    if (needed) asked |= bit(rank);
  }
  ballots_[rank_].asked = asked;
}

void Votes::heard(Rank from, Time when) {
  Time& since = rows_[from].unheard_since;
  if (since != kNever) since = std::max(since, when);
}

void Votes::wish_eviction(std::uint64_t ranks, Time now) {
  for (Rank rank = 0; rank < rows_.size(); ++rank) {
    const bool held = rank != rank_ && facts_.is_live(rank) && (ranks & bit(rank)) != 0;
    if (held) rows_[rank].wish_until = now + kWishTime;
  }
}

void Votes::set_connected(std::uint64_t ranks) {
  for (Rank rank = 0; rank < ballots_.size(); ++rank) {
    if (rank != rank_ && (ranks & bit(rank)) == 0) ballots_[rank] = {};
  }
}

bool Votes::receive(Rank from, std::string_view body, Time now) {
  if (body.size() != kBodyBytes) return false;
  rows_[from].ballot_until = now + kRepeats * repeat_every_;
  ballots_[from] = {read_u64(body.data()), read_u64(body.data() + 8), read_u64(body.data() + 16)};
  return (ballots_[from].asked & bit(rank_)) != 0;
}

void Votes::tick(Time now) {
  Ballot& own = ballots_[rank_];
  own.silent = own.holding_back = 0;
  for (Rank rank = 0; rank < rows_.size(); ++rank) {
    if (!facts_.is_live(rank)) rows_[rank] = {};
    const Row& row = rows_[rank];
    if (now >= vote_at(row)) own.silent |= bit(rank);
    if (now < row.wish_until) own.holding_back |= bit(rank);
    if (rank != rank_ && now >= row.ballot_until) ballots_[rank] = {};
  }
  own.asked &= facts_.live();
  if (own == Ballot{}) {
    repeat_at_ = kNever;
  } else if (repeat_at_ == kNever || now >= repeat_at_) {
    repeat_now_ = repeat_at_ != kNever;
    repeat_at_ = now + repeat_every_;
  }
  for (Rank rank = 0; rank < rows_.size(); ++rank) {
    count_half(rows_[rank].half_silent, rank, &Ballot::silent, now);
    count_half(rows_[rank].half_holding_back, rank, &Ballot::holding_back, now);
  }
}

/// When this rank votes against the rank of `row` as silent; kNever: it is not needed, or heard.
Time Votes::vote_at(const Row& row) const {
  const Duration lacking = std::max(dead_after_ - row.silent_before, Duration{});
  return std::min(after(row.silent_since, lacking), after(row.unheard_since, dead_after_));
}

void Votes::count_half(Half& half, Rank rank, std::uint64_t Ballot::*votes, Time now) const {
  const bool exact =
      facts_.is_live(rank) && 2 * voters(rank, votes) == std::popcount(facts_.live());
  half.since = exact ? std::min(half.since, now) : kNever;
  half.counts = exact && now >= half.since + kHalfGrace;
}

Time Votes::next_deadline() const {
  Time next = repeat_at_;
  for (Rank rank = 0; rank < rows_.size(); ++rank) {
    const Row& row = rows_[rank];
    if ((ballots_[rank_].silent & bit(rank)) == 0) next = std::min(next, vote_at(row));
    if ((ballots_[rank_].holding_back & bit(rank)) != 0) next = std::min(next, row.wish_until);
    if (ballots_[rank] != Ballot{} && rank != rank_) next = std::min(next, row.ballot_until);
    for (const Half& half : {row.half_silent, row.half_holding_back}) {
      if (half.since != kNever && !half.counts) next = std::min(next, half.since + kHalfGrace);
    }
  }
  return next;
}

int Votes::voters(Rank rank, std::uint64_t Ballot::*votes) const {
  int count = 0;
  for (Rank voter = 0; voter < ballots_.size(); ++voter) {
    if (voter == rank || !facts_.is_live(voter)) continue;
    if ((ballots_[voter].*votes & bit(rank)) != 0) ++count;
  }
  return count;
}

std::optional<Fact> Votes::decided(Rank rank) const {
  const int live = std::popcount(facts_.live());
  const int silent = voters(rank, &Ballot::silent);
  const int held = voters(rank, &Ballot::holding_back);
  Fact fact{.rank = rank, .standing = {}, .evidence = {}, .next_numbers = {}};
  const Row& row = rows_[rank];
  if (2 * silent > live || (row.half_silent.counts && 2 * silent == live)) {
    fact.standing = Standing::dead;
    fact.without_majority = 2 * silent == live;
    fact.evidence = fmt::format("silent for {}: {} of {} live ranks do not hear it",
                                rendezvous::duration_text(dead_after_), silent, live);
    return fact;
  }
  if (2 * held < live || (!row.half_holding_back.counts && 2 * held == live)) return std::nullopt;
  fact.standing = Standing::evicted;
  fact.without_majority = 2 * held == live;
  fact.evidence =
      fmt::format("it was so far behind that {} of {} live ranks exceeded --retain", held, live);
  return fact;
}

std::optional<Fact> Votes::next_fact() {
  if (!facts_.is_live(rank_)) return std::nullopt;
  for (Rank rank = 0; rank < rows_.size(); ++rank) {
    if (!facts_.is_live(rank)) continue;
    if (auto fact = decided(rank)) return fact;
  }
  return std::nullopt;
}

std::string Votes::encode(const Ballot& ballot) const {
  std::string bytes;
  append_u64(bytes, ballot.asked);
  append_u64(bytes, ballot.silent);
  append_u64(bytes, ballot.holding_back);
  return bytes;
}

std::optional<std::string> Votes::take_body() {
  const Ballot& own = ballots_[rank_];
  if (own == told_ && !repeat_now_) return std::nullopt;
  told_ = own;
  repeat_now_ = false;
  return encode(own);
}

}  // namespace tarpon::mesh
