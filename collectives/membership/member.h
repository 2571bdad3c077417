// What one rank knows of the job and says over the control mesh, without thread, clock or socket:
// the facts and how they spread, leaving, votes, verdicts, the plans of shrink() and rejoin(),
// epochs. The live Membership and the simulation drive the same class.
//
// The driver passes what the network does to streams(), what the rank does to the members below,
// and calls advance() after each. next_news() tells what the rank has to know.
//
// Everything that is sent may be sent again: a stream that works (again) begins with the sender's
// facts, votes, PASSED, abort, and what the rules of verdicts, plans and epochs repeat by greet().
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "collectives/membership/agreement.h"
#include "collectives/membership/epochs.h"
#include "collectives/membership/facts.h"
#include "collectives/membership/membership.h"
#include "collectives/membership/shrink.h"
#include "collectives/membership/streams.h"
#include "collectives/membership/votes.h"

namespace tarpon::mesh {

class Member {
 public:
  /// What the rank has to be told.
  struct News {
    enum class Kind : std::uint8_t {
      fact,     // `fact` has risen; it may be the own row
      aborted,  // `rank` aborted the communicator: `text`
      epoch,    // `epoch` was decided
    };
    Kind kind = Kind::fact;
    Fact fact;
    Rank rank = 0;
    std::string text;
    EpochRecord epoch;
  };

  /// `network` outlives the member.
  Member(const MembershipOptions& options, Network& network);

  Streams& streams() { return streams_; }
  const Streams& streams() const { return streams_; }
  const Facts& facts() const { return facts_; }

  /// Acts upon what has happened, and upon the time.
  void advance(Time now);
  Time next_deadline() const;
  std::optional<News> next_news();

  // -- what the rank does and knows

  /// This rank makes no further call. `next_numbers`: of each tag that not every rank has passed.
  void leave(std::vector<NextNumber> next_numbers, Time now);
  /// Live ranks that have not passed this rank's operations. Bit r: rank r.
  std::uint64_t not_passed() const;
  /// The operations of `ranks`, which have left, are over here.
  void passed(std::uint64_t ranks);

  /// `peers_too`: the calls of the other ranks end as well, if this rank is live.
  void abort(const std::string& reason, bool peers_too);
  /// As Membership::set_silent().
  void set_silent(std::uint64_t silent, std::uint64_t needed, Time now) {
    votes_.set_silent(silent, needed, now);
    agreement_.set_silent(silent, now);
  }
  void wish_eviction(std::uint64_t ranks, Time now) { votes_.wish_eviction(ranks, now); }
  void note_call(const CodecEvidence& call, Time now) { epochs_.note_call(call, now); }

  /// Whether the numbers of this rank are wanted, for answer_numbers().
  bool numbers_wanted() const { return epochs_.asked(); }
  void answer_numbers(const std::vector<EpochRecord::Start>& next_numbers, Time now) {
    epochs_.answer(next_numbers, now);
  }

  void report(std::uint64_t step, const LossReport& report, Duration patience, Time now) {
    agreement_.report(step, report, patience, now);
  }
  /// Halts where no verdict can come any more.
  std::optional<StepVerdict> verdict(std::uint64_t step) const;
  Rank decider() const { return agreement_.decider(); }

  Shrinking& plans(Regroup what) { return what == Regroup::shrink ? shrinking_ : rejoining_; }
  const Shrinking& plans(Regroup what) const {
    return what == Regroup::shrink ? shrinking_ : rejoining_;
  }

  /// Why this rank takes no part any more; empty while it does.
  std::string excluded() const;

 private:
  void take(const Streams::Event& event, Time now);
  void take_frame(Rank from, const Frame& frame, Time now);
  void greet(Rank rank);
  void learn(const Fact& fact, Time now);
  void lose(Rank rank, const std::string& evidence, Time now);
  void take_agreement(Rank from, const std::string& body, Time now);
  void send_outboxes();
  void send(const std::vector<std::pair<Rank, Frame>>& frames);
  void send_all(FrameKind kind, std::string_view body);
  void end_agreeing(std::string why);

  const Rank rank_;
  Facts facts_;
  Streams streams_;
  Votes votes_;
  Agreement agreement_;
  Shrinking shrinking_;
  Shrinking rejoining_;
  Epochs epochs_;
  std::uint64_t passed_here_ = 0;  // of ranks that left: told them PASSED
  std::uint64_t passed_by_ = 0;    // they told this rank PASSED
  std::string own_abort_;
  std::string aborted_;  // by a rank, and why; empty: by none
  std::deque<News> news_;
};

}  // namespace tarpon::mesh
