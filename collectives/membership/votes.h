// Excluding ranks by votes: rules without thread, clock or socket.
//
// A rank votes against another one for two reasons. *Silent*: exact calls (by the data path) or
// shrink() (by the mesh and the data path) have needed that rank for `dead_after`, and heard
// nothing from it. *Holding back*: the shards that this rank retains for the other one have
// exceeded their limit for as long as the deadline of a bounded call. Votes go to all ranks, and
// every rank counts them: more than half of the live ranks, or exactly half, exclude the rank; with
// exactly half the fact says `without majority`. Fewer votes exclude no rank. Silent ranks become
// dead, and ranks that hold back become evicted.
//
// The time in which exact calls need a silent rank is added up over all calls, so that calls with
// shorter deadlines than `dead_after` find a vanished rank too. Time between calls does not count,
// and the sum begins again at 0 when the data path hears the rank.
//
// A rank counts its own ballot and those of the ranks to which its stream works. It forgets the
// ballot of a rank when that stream breaks, since it would not hear of a withdrawal. A stream that
// works begins with the current ballot, even an empty one. A partition breaks no stream at once, so
// a ballot with votes is also repeated. It lapses when kRepeats repetitions are missing, which is
// before this rank can vote against a rank that the partition has silenced.
//
// shrink() asks the ranks that it needs for a sign of life (HERE) over the mesh, since no packets
// flow then. A vote of silence is withdrawn when its rank is heard or not needed any more; a vote
// against a rank that holds back lapses after kWishTime. Exactly half decide only after kHalfGrace,
// in which more votes may come; the calls of that half have to last that long.
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
  static constexpr Duration kRepeatEvery = 500ms;  // at most: kRepeats fit in half of `dead_after`
  static constexpr int kRepeats = 4;

  /// `facts` outlives this object.
  Votes(Rank rank, const Facts& facts, Duration dead_after);

  /// `silent`: ranks that are silent on the data path now. `needed`: those of them that exact calls
  /// need now. Bit r: rank r.
  void set_silent(std::uint64_t silent, std::uint64_t needed, Time now);
  /// Sets the ranks that shrink() waits for now.
  void set_needed(std::uint64_t ranks, Time now);
  /// Notes that a frame of `from` came at `when`, or a packet while no stream to it works.
  void heard(Rank from, Time when);
  /// Votes against `ranks`, which hold back this rank's bounded calls.
  void wish_eviction(std::uint64_t ranks, Time now);

  /// Forgets the ballots of all ranks but `ranks`, which have a working stream. Bit r: rank r.
  void set_connected(std::uint64_t ranks);
  /// Takes the body of another rank's VOTES frame, and ignores malformed ones. Returns whether it
  /// asks this rank for a sign of life.
  bool receive(Rank from, std::string_view body, Time now);

  void tick(Time now);
  Time next_deadline() const;

  /// Returns a fact that the votes have decided at the last tick(). The caller learns it and calls
  /// tick() again, until there is none.
  std::optional<Fact> next_fact();

  /// Returns the body of a VOTES frame for all ranks, if this rank's votes have changed or are due
  /// for repetition.
  std::optional<std::string> take_body();
  /// The current body, for a rank that has just connected.
  std::string body() const { return encode(ballots_[rank_]); }

 private:
  /// One rank's requests and votes: masks of the other ranks.
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
    Duration silent_before{};     // earlier silence while needed, since it was last heard
    Time unheard_since = kNever;  // on the mesh, while needed
    Time wish_until{};
    Time ballot_until{};  // when that rank's ballot lapses
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
  std::vector<Ballot> ballots_;  // by rank, this one included
  Ballot told_;
  Time repeat_at_ = kNever;  // kNever: there is nothing to repeat
  bool repeat_now_ = false;
};

}  // namespace tarpon::mesh
