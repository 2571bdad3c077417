// How ranks agree on an epoch record: the rules, without thread, clock or socket.
//
// Every rank watches the loss of its own results and tells the decider, the lowest live rank, when
// its level changes. The level is lossy above 2 % and calm below 1 %, as an average over 16 calls.
// It is costly when most of the rank's coded calls took more than 1.25 times their bound, until a
// bound is more than twice as long. Calls become coded when one rank is lossy and none is costly.
// They become uncoded when all ranks are calm or one is costly.
//
// Over hosts, a rank that is gone costs its host a slice of every bucket. So once a rank is gone,
// bounded calls go to each rank over the network. Coded calls do so too, and then take several times
// as long. So the loss of calls over hosts makes no rank lossy.
//
// For a change the decider asks all live ranks twice how far their calls have come. In each tag the
// record starts beyond the furthest rank: by kMargin operations, plus the progress of half a
// second. All ranks then have the record before they need it, even if TCP retransmits a segment. If
// a rank does not answer, nothing changes; the decider asks again later.
//
// A rank that becomes the decider asks at once, because a record of the last decider may have
// reached only some ranks. If the ranks know different records, it decides anew. The ranks that it
// has asked accept no record of a lower rank any more.
//
// A rank that lacks a record when it needs one loses the data that it sends and receives in those
// operations. It learns the epoch from the packets of others (EpochHistory::seen).
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/membership/epoch_history.h"
#include "collectives/membership/facts.h"
#include "collectives/membership/frame.h"
#include "transport/port.h"
#include "transport/time.h"

namespace tarpon::mesh {

/// The decider's questions, and the answers so far.
struct EpochInquiry {
  std::uint32_t round = 0;
  bool second = false;
  std::uint64_t answered = 0;               // bit r: rank r has answered
  std::uint16_t latest = 0;                 // latest epoch that any of the ranks knows
  bool apart = false;                       // a rank knows another epoch than this one
  std::vector<EpochRecord::Start> first;    // furthest numbers of the first round, ordered by tag
  std::vector<EpochRecord::Start> numbers;  // furthest numbers so far, ordered by tag
  Time next_round = kNever;                 // when to ask the second time
  Time until{};                             // deadline for the answers
};

class Epochs {
 public:
  static constexpr double kLossy = 0.02;
  static constexpr double kCalm = 0.01;
  static constexpr double kWeight = 1.0 / 16;       // of a call in the averages
  static constexpr double kOverrun = 1.25;          // of the bound
  static constexpr double kMostly = 0.5;            // average share of overruns; costly above
  static constexpr std::uint32_t kMargin = 8;       // operations
  static constexpr Duration kBetweenRounds = 50ms;  // of questions
  static constexpr std::uint32_t kAhead = 10;       // times the progress of a tag between rounds
  static constexpr Duration kPatience = 2s;         // for answers
  static constexpr Duration kRest = 1s;             // after a missing answer, or a decision

  /// `coded`: in epoch 0. `automatic`: whether that changes by loss and cost. `facts` outlives this
  /// object.
  Epochs(Rank rank, const Facts& facts, bool coded, bool automatic);

  /// Takes the measurements of a bounded call of this rank that has ended.
  void note_call(const CallEvidence& call, Time now);

  /// Acts upon a row that has risen. If this rank is not live, it takes no part any more.
  void facts_changed(Time now);

  /// Resends to `rank` the frames that a broken connection may have lost.
  void greet(Rank rank);

  /// Handles frames of the kinds epoch_level, epoch_question, epoch_answer and epoch_record.
  void take(Rank from, const Frame& frame, Time now);

  void tick(Time now);
  Time next_deadline() const;

  /// Whether the decider waits for the numbers of this rank. The caller passes them to answer().
  bool asked() const { return question_.has_value(); }
  void answer(const std::vector<EpochRecord::Start>& next_numbers, Time now);

  /// Returns the decided record that was not taken yet, if there is one.
  std::optional<EpochRecord> take_record();

  std::vector<std::pair<Rank, Frame>> take_outbox();

 private:
  enum class Level : std::uint8_t { calm = 0, between = 1, lossy = 2, costly = 3 };
  struct Question {
    Rank from = 0;
    std::uint32_t round = 0;
  };
  bool live(Rank rank) const { return facts_.is_live(rank); }
  void note_cost(const CallEvidence& call);
  Level level() const;
  void tell_level();
  bool is_active() const { return automatic_ || over_hosts_; }
  bool wants_coded() const;
  bool wants_flat() const;
  bool curious() const;
  void consider(Time now);
  void ask(Time now);
  void take_answer(Rank from, std::string_view body, Time now);
  void all_answered(Time now);
  void decide(Time now);
  void take_decided(std::string_view body);
  void send(Rank to, FrameKind kind, std::string body);

  const Rank rank_;
  const Facts& facts_;
  const bool automatic_;
  bool over_hosts_ = false;  // a call of this rank went over hosts
  Rank decider_ = 0;
  double loss_ = 0;
  double overruns_ = 0;        // share of the coded calls that overran, as an average
  Duration costly_bound_{};    // largest bound under which coded calls overran; 0: none
  std::vector<Level> levels_;  // by rank, as last told
  std::uint64_t told_ = 0;     // bit r: rank r has told its level to this one
  EpochSetting setting_;       // the latest one decided
  bool inherited_ = false;     // this rank became the decider, and not all have answered yet
  Rank heeded_ = 0;            // highest live rank that has asked; lower ranks are ignored
  std::optional<Question> question_;
  std::optional<EpochInquiry> asking_;
  std::uint32_t rounds_ = 0;
  Time rest_until_{};
  std::optional<EpochRecord> record_;
  std::string decided_;  // the body of the record that this rank decided last
  std::vector<std::pair<Rank, Frame>> outbox_;
};

}  // namespace tarpon::mesh
