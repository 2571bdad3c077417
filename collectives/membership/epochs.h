// How ranks agree on an epoch record: the rules, without thread, clock or socket.
//
// Every rank watches the loss of its own results and tells the decider, the lowest live rank, when
// it leaves or enters a level: lossy above 2 %, calm below 1 %, as an average over 16 calls; costly
// where most of its coded calls took more than 1.25 times their bound, until a bound is twice as
// long. Calls are to be coded when one rank is lossy and none is costly, and no longer when all are
// calm or one is costly.
//
// To change that the decider asks all live ranks, twice, how far their calls have come: a record
// starts, tag by tag, beyond the furthest of them by as much as they go in half a second, and by
// kMargin operations at least; so all have it before they need it, though TCP repeat a segment.
// Where one does not answer nothing changes; it is asked again later.
//
// Who becomes the decider asks at once: a record of the last one may have reached some and not
// others. Where they know of different ones it decides anew; who was asked by it takes no record
// of a lower rank any more.
//
// A rank that has no record when it needs one loses what it sends and gets in those operations, and
// learns of it by the packets of others (EpochHistory::seen).
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

/// What the decider has asked for.
struct EpochInquiry {
  std::uint32_t round = 0;
  bool second = false;
  std::uint64_t answered = 0;               // bit r: rank r has
  std::uint16_t latest = 0;                 // of the epochs that they know
  bool apart = false;                       // one of them knows another than this rank
  std::vector<EpochRecord::Start> first;    // furthest numbers, ordered by tag, the first time
  std::vector<EpochRecord::Start> numbers;  // and this time
  Time next_round = kNever;                 // when to ask the second time
  Time until{};                             // answers are waited for
};

class Epochs {
 public:
  static constexpr double kLossy = 0.02;
  static constexpr double kCalm = 0.01;
  static constexpr double kWeight = 1.0 / 16;  // of a call in the averages
  static constexpr double kOverrun = 1.25;     // of the bound
  static constexpr double kMostly = 0.5;       // of the coded calls: they overrun, as an average
  static constexpr std::uint32_t kMargin = 8;  // operations
  static constexpr Duration kBetweenRounds = 50ms;  // of questions
  static constexpr std::uint32_t kAhead = 10;       // times what a tag goes between them
  static constexpr Duration kPatience = 2s;         // for answers
  static constexpr Duration kRest = 1s;             // after none, or a decision

  /// Without `automatic` nothing is ever asked. `facts` outlives the rules.
  Epochs(Rank rank, const Facts& facts, bool automatic);

  /// A bounded call of this rank has ended.
  void note_call(const CodecEvidence& call, Time now);

  /// A row has risen. A rank that is not live itself takes no part any more.
  void facts_changed(Time now);

  /// Sends `rank` the frames again that a broken connection may have lost.
  void greet(Rank rank);

  /// Frames of the kinds epoch_level, epoch_question, epoch_answer and epoch_record.
  void take(Rank from, const Frame& frame, Time now);

  void tick(Time now);
  Time next_deadline() const;

  /// Whether somebody waits for the numbers of this rank: to be asked for, and given to answer().
  bool asked() const { return question_.has_value(); }
  void answer(const std::vector<EpochRecord::Start>& next_numbers, Time now);

  /// A record that is decided and not taken yet.
  std::optional<EpochRecord> take_record();

  std::vector<std::pair<Rank, Frame>> take_outbox();

 private:
  enum class Level : std::uint8_t { calm = 0, between = 1, lossy = 2, costly = 3 };
  struct Question {
    Rank from = 0;
    std::uint32_t round = 0;
  };
  bool live(Rank rank) const { return facts_.is_live(rank); }
  void note_cost(const CodecEvidence& call);
  Level level() const;
  void tell_level();
  std::optional<bool> wanted() const;
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
  Rank decider_ = 0;
  double loss_ = 0;
  double overruns_ = 0;        // share of the coded calls
  Duration costly_bound_{};    // under which coded calls overran; 0: none
  std::vector<Level> levels_;  // by rank, as far as told
  std::uint64_t told_ = 0;     // bit r: rank r has told this one
  EpochSetting setting_;       // the latest one decided
  bool inherited_ = false;     // this rank became the decider, and has not heard all yet
  Rank heeded_ = 0;            // the highest live one that has asked: to it lower ones are gone
  std::optional<Question> question_;
  std::optional<EpochInquiry> asking_;
  std::uint32_t rounds_ = 0;
  Time rest_until_{};
  std::optional<EpochRecord> record_;
  std::string decided_;  // the body of the record that this rank decided last
  std::vector<std::pair<Rank, Frame>> outbox_;
};

}  // namespace tarpon::mesh
