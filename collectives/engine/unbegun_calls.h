// Calls that have not begun: they wait for the window of their tag, for their encoding, or for
// release(), and take their numbers in order. Here are also the ends of such calls, and the numbers
// of a rank that runs no more calls.
//
// Not thread-safe. No clock inside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/engine/call_pieces.h"
#include "collectives/engine/refusal.h"
#include "collectives/engine/report/missed_calls.h"
#include "transport/endpoint.h"

namespace tarpon {

/// How calls end that are not run.
struct CallEnding {
  Status status = Status::aborted;
  std::vector<Rank> blamed;
  std::string detail;
  AbortReason reason = AbortReason::given_up;
};

class UnbegunCalls {
 public:
  struct Waiting {
    std::shared_ptr<PendingCall> call;
    Time submitted;
    std::vector<Rank> behind = {};  // late ranks of the last call that failed before it
    bool over = false;              // the call is over, and waits only for its number
    bool held = false;              // until release()
    std::uint32_t tag() const { return call->arguments.tag; }
    Time deadline() const { return after(submitted, call->arguments.deadline); }
  };
  /// All outlive it.
  struct Parts {
    const EndpointOptions& options;
    const Endpoint& endpoint;
    const CodedCalls& coded;
    CallPieces& pieces;
  };
  explicit UnbegunCalls(const Parts& parts)
      : parts_(parts), missed_(parts.options.remembered_tags) {}

  /// Calls that wait and are not over.
  std::size_t open() const { return waiting_.size() - over_; }
  const std::deque<Waiting>& all() const { return waiting_; }
  /// Whether a call of the tag waits, over or not.
  bool has(std::uint32_t tag) const { return count(tag) > 0; }
  void add(Waiting call);
  /// Lets the held calls of the tag begin.
  void release(std::uint32_t tag);
  /// A call of the tag has failed because `ranks` were late: the calls that waited for it say so.
  void note_behind(std::uint32_t tag, const std::vector<Rank>& ranks);
  /// The number that the next call of the tag takes: calls that wait have theirs already.
  std::uint32_t next_number(std::uint32_t tag) const {
    return parts_.endpoint.tags().next_number(tag) + static_cast<std::uint32_t>(count(tag));
  }

  /// Calls `start` with the first call of each tag that can begin, in the order of submission,
  /// until none of them can. `start` returns false for a call that has to wait.
  template <typename Start>
  void start(const Start& start);
  /// Whether a call may have become able to start since this was asked last.
  bool take_startable() {
    const bool ready = parts_.pieces.take_startable();
    return std::exchange(released_, false) || ready;
  }

  /// When expire() has something to do.
  Time next_expiry() const { return next_expiry_; }
  /// Ends calls at their deadlines. They stay here: their numbers have to be taken in order, or
  /// later calls would no longer match those of the peers. `late_ranks`: of the call of a tag that
  /// runs; nullopt: none does.
  void expire(const std::function<std::optional<std::vector<Rank>>(std::uint32_t tag)>& late_ranks,
              Time now);

  /// Ends a call as refused; its number is in the report.
  void refuse(PendingCall& call, const Refusal& refusal, Time submitted, Time now);
  /// Ends a call, whose number is in the report. REQUIRES: it has not begun.
  void end(PendingCall& call, const CallEnding& ending, Time submitted, Time now);
  /// Ends all that wait. They stay here until their numbers are taken.
  void end_all(const CallEnding& ending, Time now);

  /// From now on calls take no number at the endpoint. Call end_all() then, and forget().
  void end_numbering() { numbering_ended_ = true; }
  /// Drops the calls, once no later call needs a number. REQUIRES: they are over.
  void forget();
  /// The number of a call that no longer takes one at the endpoint. It still tells calls apart.
  std::uint32_t next_unnumbered(std::uint32_t tag) const;
  /// Notes a call that an evicted rank misses, by its report.
  void note_missed(Report& report);

 private:
  std::size_t count(std::uint32_t tag) const {
    return static_cast<std::size_t>(std::count_if(
        waiting_.begin(), waiting_.end(), [tag](const Waiting& one) { return one.tag() == tag; }));
  }
  bool is_first_of_tag(std::size_t index) const;
  void fill_report(Report& report, Time submitted, Time now) const;

  const Parts parts_;
  std::deque<Waiting> waiting_;
  std::size_t over_ = 0;       // of waiting_
  Time next_expiry_ = kNever;  // no later than the first deadline among the others
  bool released_ = false;      // a held call, since take_startable()
  bool numbering_ended_ = false;
  MissedCalls missed_;
};

template <typename Start>
void UnbegunCalls::start(const Start& start) {
  for (std::size_t i = 0; i < waiting_.size();) {
    const Waiting& next = waiting_[i];
    const bool waits = !is_first_of_tag(i) || !parts_.endpoint.tags().can_submit(next.tag()) ||
                       (next.held && !next.over);
    if (!waits && next.over) --over_;
    if (waits || !start(next)) {
      ++i;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace tarpon
