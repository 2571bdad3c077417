// One rank's part in the control mesh, without thread, clock or socket: facts and how they spread,
// leaving, votes, verdicts, the plans of shrink() and rejoin(), epochs. The live Membership and the
// simulation drive the same class.
//
// The driver passes the network's events to the Mesh and the rank's actions to the functions below,
// and calls Mesh::tick() and then advance() after each. next_news() returns the events that the
// rank must learn.
//
// Reports and verdicts also go as datagrams, which may be lost. take_datagrams() returns the ones
// to send, and receive() takes the ones that have come.
//
// Every message may be sent again: a line that is up (again) begins with the sender's facts,
// votes, PASSED, abort, and the messages that the greet() of verdicts, plans and epochs repeats.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/membership/agreement.h"
#include "collectives/membership/epochs.h"
#include "collectives/membership/facts.h"
#include "collectives/membership/line.h"
#include "collectives/membership/membership.h"
#include "collectives/membership/shrink.h"
#include "collectives/membership/votes.h"

namespace tarpon::mesh {

class Member {
 public:
  /// An event that the rank must learn.
  struct News {
    enum class Kind : std::uint8_t {
      fact,     // `fact` has risen; it may be this rank's own row
      aborted,  // `rank` aborted the communicator, for the reason `text`
      epoch,    // `epoch` was decided
      rejoin,   // the ranks that wait in rejoin() are `ranks` now
    };
    Kind kind = Kind::fact;
    Fact fact;
    Rank rank = 0;
    std::string text;
    EpochRecord epoch;
    std::uint64_t ranks = 0;  // bit r: rank r
  };

  /// `line`: of the ranks that the options count; outlives the member.
  Member(const MembershipOptions& options, Line& line);

  const Facts& facts() const { return facts_; }

  /// Acts upon what has happened since the last call, and upon deadlines that have passed.
  void advance(Time now);
  Time next_deadline() const;
  std::optional<News> next_news();

  /// A datagram has come on the data path.
  void receive(const AgreementPacket& packet, Time now);
  /// Returns the datagrams to send, in order, and removes them.
  std::vector<AgreementPacket> take_datagrams() { return std::exchange(datagrams_, {}); }

  // -- what the rank does and knows

  /// Announces that this rank makes no further call. `next_numbers`: the next number of each tag
  /// that not every rank has passed.
  void leave(std::vector<NextNumber> next_numbers, Time now);
  /// Live ranks that have not passed this rank's operations. Bit r: rank r.
  std::uint64_t not_passed() const;
  /// Tells `ranks`, which have left, that their operations are over here.
  void passed(std::uint64_t ranks);

  /// Makes verdict() halt. `peers_too`: ends the calls of the other ranks as well, if this rank is
  /// live.
  void abort(const std::string& reason, bool peers_too);
  /// As Membership::set_silent().
  void set_silent(std::uint64_t silent, std::uint64_t needed, Time now) {
    votes_.set_silent(silent, needed, now);
    agreement_.set_silent(silent, now);
  }
  void wish_eviction(std::uint64_t ranks, Time now) { votes_.wish_eviction(ranks, now); }
  void note_call(const CallEvidence& call, Time now) { epochs_.note_call(call, now); }

  /// Whether the decider waits for answer_numbers().
  bool numbers_wanted() const { return epochs_.asked(); }
  void answer_numbers(const std::vector<EpochRecord::Start>& next_numbers, Time now) {
    epochs_.answer(next_numbers, now);
  }

  void report(std::uint64_t step, const LossReport& report, Duration patience, Time now) {
    agreement_.report(step, report, patience, now);
  }
  /// This rank waits for the verdict of `step` no longer.
  void give_up(std::uint64_t step) { agreement_.give_up(step); }
  /// Returns the verdict of `step`, or nullopt if there is none yet; a halt if none can come.
  std::optional<StepVerdict> verdict(std::uint64_t step) const;
  Rank decider() const { return agreement_.decider(); }

  /// Begins, and ends, to wait for a plan. The verdicts of this rank say that it waits to rejoin.
  void wait_for_plan(Regroup what, Time now);
  void stop_waiting(Regroup what, Time now);
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
  void note_rejoin(Time now);
  void take_agreement(Rank from, const std::string& body, Time now);
  void send_agreement();
  void send_outboxes();
  void send(const std::vector<std::pair<Rank, Frame>>& frames);
  void send_all(FrameKind kind, std::string_view body);
  void end_agreeing(std::string why);

  const Rank rank_;
  const bool split_;  // from a job
  Facts facts_;
  Line& line_;
  Votes votes_;
  Agreement agreement_;
  Shrinking shrinking_;
  Shrinking rejoining_;
  std::uint64_t rejoin_told_ = 0;  // by the latest news
  Epochs epochs_;
  std::uint64_t passed_here_ = 0;  // ranks that left, and were told PASSED
  std::uint64_t passed_by_ = 0;    // ranks that told this rank PASSED
  std::string own_abort_;
  std::string aborted_;  // which rank aborted, and why; empty: none did
  std::deque<News> news_;
  std::vector<AgreementPacket> datagrams_;
};

}  // namespace tarpon::mesh
