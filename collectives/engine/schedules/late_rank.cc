// AllReduce with one late rank: StragglAR ("StragglAR: Efficient AllReduce with Dynamic
// Stragglers", 2025), with several chunks a rank.
//
// The other ranks scatter and add up while they wait for the late rank. Then there are rounds. In
// round r the owner of chunk r and the late rank exchange what they have of it, and both have its
// result. The results of earlier rounds spread meanwhile. Each other rank holds one result to pass
// on: 2^j ranks hold the result of round r when j more rounds have passed. That makes
// 1 + 2 + ... + world / 2 holders, all ranks but the late one. In each round a holder of the oldest
// result and a holder of a younger one swap. Then every rank has the oldest result, and each
// younger one has twice as many holders.
#include <algorithm>
#include <bit>
#include <cassert>
#include <map>
#include <utility>
#include <vector>

#include "collectives/engine/schedules/schedule.h"

namespace tarpon {
namespace {

/// How results spread, copy by copy. The other ranks have the numbers 0 to world - 2, the late rank
/// has the number world - 1.
class Spread {
 public:
  struct Copy {
    std::uint32_t round = 0, from = 0, to = 0, chunk = 0;
  };

  Spread(std::uint32_t world, std::uint32_t chunks)
      : late_(world - 1),
        levels_(static_cast<std::uint32_t>(std::bit_width(world)) - 1),
        chunks_(chunks),
        has_(world, std::vector<bool>(chunks, false)),
        held_(world, kNothing) {
    has_[late_].assign(chunks, true);
    for (round_ = 0; round_ < chunks + levels_ - 1; ++round_) run_round();
  }

  /// In the order of rounds.
  const std::vector<Copy>& copies() const { return copies_; }

 private:
  static constexpr std::uint32_t kNothing = UINT32_MAX;

  /// The rank that exchanges its chunk with the late rank in a round.
  std::uint32_t in_turn(std::uint32_t round) const {
    return round < chunks_ ? round % late_ : kNothing;
  }

  void run_round() {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> held_next;  // rank, chunk
    if (round_ < levels_) {
      fill(held_next);
    } else {
      trade(held_next);
    }
    for (std::size_t i = arrived_; i < copies_.size(); ++i) {
      has_[copies_[i].to][copies_[i].chunk] = true;
    }
    arrived_ = copies_.size();
    for (const auto& [rank, chunk] : held_next) hold(rank, chunk);
    const std::uint32_t turn = in_turn(round_);
    if (turn == kNothing) return;
    has_[turn][round_] = true;
    hold(turn, round_);
    // The late rank has no more exchanges to make. It passes the last result on.
    if (round_ + 1 == chunks_) hold(late_, round_);
  }

  /// The first rounds: each holder passes its result to a rank that holds none yet.
  void fill(std::vector<std::pair<std::uint32_t, std::uint32_t>>& held_next) {
    // A rank must hold the oldest result in the round of its own exchange. So the latest holder
    // passes its result to a rank whose exchange is that many rounds ahead.
    std::uint32_t empty = 2 * levels_ - 1;
    for (std::uint32_t from = 0; from < late_; ++from) {
      if (held_[from] == kNothing || from == in_turn(round_)) continue;
      std::uint32_t to = round_ - 1 + levels_;
      if (from + 1 != round_) {
        while (empty < late_ && held_[empty] != kNothing) ++empty;
        to = empty++;
      }
      if (to >= late_) continue;
      copies_.push_back({round_, from, to, held_[from]});
      held_next.emplace_back(to, held_[from]);
    }
  }

  /// Each holder of the oldest result swaps with a holder of another one.
  void trade(std::vector<std::pair<std::uint32_t, std::uint32_t>>& held_next) {
    const std::uint32_t oldest = round_ - levels_;
    const std::uint32_t turn = in_turn(round_);
    std::vector<std::uint32_t> old = holders_.at(oldest), young;
    std::erase(old, turn);
    for (const auto& [chunk, ranks] : holders_) {
      if (chunk != oldest) young.insert(young.end(), ranks.begin(), ranks.end());
    }
    // The rank with the next exchange takes the next oldest result, for the same reason.
    std::stable_sort(old.begin(), old.end(), [this](std::uint32_t a, std::uint32_t b) {
      return until_turn(a) < until_turn(b);
    });
    assert(old.size() == young.size());
    for (std::size_t i = 0; i < old.size(); ++i) {
      const std::uint32_t a = old[i], b = young[i], chunk = held_[b];
      if (!has_[b][oldest]) copies_.push_back({round_, a, b, oldest});
      if (!has_[a][chunk]) copies_.push_back({round_, b, a, chunk});
      held_next.emplace_back(a, chunk);
    }
    for (const std::uint32_t rank : holders_.at(oldest)) held_[rank] = kNothing;
    holders_.erase(oldest);
  }

  /// Rounds until a rank exchanges its chunk; `levels_` where that is none of the next rounds.
  std::uint32_t until_turn(std::uint32_t rank) const {
    for (std::uint32_t rounds = 1; rounds < levels_; ++rounds) {
      if (in_turn(round_ + rounds) == rank) return rounds;
    }
    return levels_;
  }

  void hold(std::uint32_t rank, std::uint32_t chunk) {
    held_[rank] = chunk;
    holders_[chunk].push_back(rank);
  }

  const std::uint32_t late_, levels_, chunks_;
  std::uint32_t round_ = 0;
  std::vector<std::vector<bool>> has_;                           // by rank and chunk: holds result
  std::vector<std::uint32_t> held_;                              // by rank: chunk to pass on
  std::map<std::uint32_t, std::vector<std::uint32_t>> holders_;  // by chunk, the oldest first
  std::vector<Copy> copies_;
  std::size_t arrived_ = 0;  // copies_ before this index have arrived
};

constexpr std::size_t kScatter = 0, kExchange = 1, kSpread = 2;  // stages

}  // namespace

std::uint32_t late_rank_segments(std::uint32_t world, std::uint64_t bytes) {
  constexpr std::uint64_t kMany = 4;
  constexpr std::uint64_t kSmallest = 64 << 10;
  return bytes / (kMany * (world - 1)) >= kSmallest ? static_cast<std::uint32_t>(kMany) : 1;
}

Schedule late_rank_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                            std::uint64_t count, std::size_t element_bytes, Rank late,
                            std::uint32_t segments) {
  assert(std::has_single_bit(world) && world >= 2 && late < world && segments >= 1);
  using Pieces = std::vector<Schedule::Piece>;
  const std::uint32_t others = world - 1, chunks = segments * others;
  const ShardLayout layout{count, element_bytes, chunks};
  const auto number = [&](Rank of) { return of == late ? others : of < late ? of : of - 1u; };
  const auto rank_of = [&](std::uint32_t of) {
    return of == others ? late : static_cast<Rank>(of < late ? of : of + 1);
  };
  const std::uint32_t own = number(rank);
  const auto owns = [&](std::uint32_t chunk) { return chunk % others == own; };
  Schedule schedule;
  for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
    const bool is_late = rank == late;
    schedule.chunks.push_back({.elements = layout.elements((chunk + operation % chunks) % chunks),
                               .additions = is_late       ? 1u
                                            : owns(chunk) ? others
                                                          : 0u,
                               .stored = !is_late && !owns(chunk)});
  }
  schedule.stages.resize(3);
  for (const std::size_t stage : {kExchange, kSpread}) {
    schedule.stages[stage].confirmed = schedule.stages[stage].in_rounds = true;
  }
  // Returns `piece` for each chunk of an owner.
  const auto pieces = [&](std::uint32_t owner, Schedule::Piece piece) {
    Pieces result;
    for (piece.chunk = owner; piece.chunk < chunks; piece.chunk += others) {
      piece.round = piece.chunk;
      result.push_back(piece);
    }
    return result;
  };
  const bool sums = others > 1;  // owners have more than their own contribution
  Schedule::Stage& exchange = schedule.stages[kExchange];
  if (rank == late) {
    for (std::uint32_t owner = 0; owner < others; ++owner) {
      schedule.add(exchange.sends, rank_of(owner), pieces(owner, {.version = 0}));
      schedule.add(exchange.receives, rank_of(owner),
                   pieces(owner, {.version = 1, .partial = sums, .left = true}));
    }
  } else {
    Schedule::Stage& scatter = schedule.stages[kScatter];
    for (std::uint32_t distance = 1; distance < others; ++distance) {
      const std::uint32_t to = (own + others - distance) % others;
      schedule.add(scatter.sends, rank_of(to), pieces(to, {.version = 0}));
      schedule.add(scatter.receives, rank_of((own + distance) % others),
                   pieces(own, {.version = distance}));
    }
    schedule.add(exchange.sends, late, pieces(own, {.version = others - 1, .partial = sums}));
    schedule.add(exchange.receives, late, pieces(own, {.version = others}));
  }
  // Both ends list the pieces of a message by round.
  Schedule::Stage& spread = schedule.stages[kSpread];
  std::vector<Pieces> sent(world), received(world);
  std::vector<std::uint32_t> receivers, senders;  // in the order of their first pieces
  const auto put = [&](std::vector<Pieces>& all, std::vector<std::uint32_t>& order,
                       std::uint32_t peer, const Spread::Copy& copy) {
    if (all[peer].empty()) order.push_back(peer);
    all[peer].push_back({.chunk = copy.chunk,
                         .version = schedule.chunks[copy.chunk].last_version(),
                         .round = copy.round});
  };
  const Spread all(world, chunks);
  for (const Spread::Copy& copy : all.copies()) {
    if (copy.from == own) put(sent, receivers, copy.to, copy);
    if (copy.to == own) put(received, senders, copy.from, copy);
  }
  for (const std::uint32_t to : receivers) schedule.add(spread.sends, rank_of(to), sent[to]);
  for (const std::uint32_t from : senders) {
    schedule.add(spread.receives, rank_of(from), received[from]);
  }
  return schedule;
}

}  // namespace tarpon
