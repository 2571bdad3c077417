// Excluding ranks by votes: rules without thread, clock or socket.
//
// A rank votes against another one for two reasons. *Silent*: exact calls (by the data path) or
// shrink() (by the mesh and the data path) have needed that rank for `dead_after`, and heard
// nothing of it. *Holding back*: the shards that this rank retains for the other one have exceeded
// their limit for as long as the deadline of a bounded call. Votes go to all ranks, and every rank
// counts them: more than half of the live ranks, or exactly half, exclude the rank; with exactly
// half the fact says `without majority`. Fewer exclude nobody. Silent ranks become dead, and ranks
// that hold back become evicted.
//
// The time in which exact calls need a silent rank is added up over all calls, so that calls with
// shorter deadlines than `dead_after` find a vanished rank too. Time between calls does not count,
// and the sum begins again at 0 when the data path hears the rank.
//
// A rank counts its own ballot and those of the ranks to which its stream works. It forgets the
// ballot of a rank when that stream breaks, since it would not hear of a withdrawal; a stream that
// works begins with the ballot as it stands, an empty one too. A partition breaks no stream at
// once, so a ballot with votes is also repeated, and lapses when kRepeats of them are missing:
// before a rank that the partition has silenced can be voted against.
//
// shrink() asks the ranks that it needs for a sign of life (HERE) over the mesh, since no packets
// flow then. A vote of silence is withdrawn when its rank is heard or not needed any more; a vote
// against a rank that holds back lapses after kWishTime. Exactly half decide only after kHalfGrace,
// in which more votes may come: the calls of that half have to last so long.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/membership/facts.h"
#include "transport/time.h"

namespace tarpon::mesh {

class Votes {
 public:
  static constexpr Duration kWishTime = 10s;
  static constexpr Duration kHalfGrace = 1s;
  static constexpr Duration kRepeatEvery = 500ms;  // or more often: kRepeats within half of
  static constexpr int kRepeats = 4;               // `dead_after`

  /// `facts` outlives the rules.
  Votes(Rank rank, const Facts& facts, Duration dead_after);

  /// `silent`: ranks that are silent on the data path now. `needed`: those of them that exact calls
  /// need now. Bit r: rank r.
  void set_silent(std::uint64_t silent, std::uint64_t needed, Time now);
  /// Ranks that shrink() waits for now.
  void set_needed(std::uint64_t ranks, Time now);
  /// A frame of `from` came at `when`, or a packet while no stream to it works.
  void heard(Rank from, Time when);
  /// This rank's bounded calls are held back by `ranks`.
  void wish_eviction(std::uint64_t ranks, Time now);

  /// Ranks with a working stream: the ballots of the others are forgotten. Bit r: rank r.
  void set_connected(std::uint64_t ranks);
  /// The body of another rank's VOTES frame. Malformed ones are ignored. Whether it asks this rank
  /// for a sign of life.
  bool receive(Rank from, std::string_view body, Time now);

  void tick(Time now);
  Time next_deadline() const;

  /// What the votes decided by the last tick(). Learn it and tick() again, until there is nothing.
  std::optional<Fact> next_fact();

  /// The body of a VOTES frame for all, when this rank's votes have changed or it repeats them.
  std::optional<std::string> take_body();
  /// The same as it stands, for a rank that has just connected.
  std::string body() const { return encode(ballots_[rank_]); }

 private:
  /// What one rank says of the others: masks.
  struct Ballot {
    std::uint64_t asked = 0, silent = 0, holding_back = 0;
    bool operator==(const Ballot&) const = default;
  };
  /// Votes of one kind by exactly half of the live ranks.
  struct Half {
    Time since = kNever;
    bool counts = false;  // kHalfGrace is over
  };
  struct Row {
    Time silent_since = kNever;   // on the data path, while needed
    Duration silent_before{};     // before that, while needed, since it was heard
    Time unheard_since = kNever;  // on the mesh, while needed
    Time wish_until{};
    Time ballot_until{};  // that rank's ballot lapses then
    Half half_silent, half_holding_back;
  };
  std::string encode(const Ballot& ballot) const;
  Time vote_at(const Row& row) const;
  std::optional<Fact> decided(Rank rank) const;
  void count_half(Half& half, Rank rank, std::uint64_t Ballot::*votes, Time now) const;
  int voters(Rank rank, std::uint64_t Ballot::*votes) const;

  const Rank rank_;
  const Facts& facts_;
  const Duration dead_after_;
  const Duration repeat_every_;
  std::vector<Row> rows_;        // by rank
  std::vector<Ballot> ballots_;  // by rank, the own one included
  Ballot told_;
  Time repeat_at_ = kNever;  // kNever: there is nothing to repeat
  bool repeat_now_ = false;
};

}  // namespace tarpon::mesh
