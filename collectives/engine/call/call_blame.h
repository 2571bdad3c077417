// Which ranks a running call waits for, and which ranks are to blame for its end.
//
// A look at an open operation: it changes nothing. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/engine/call/closed_stages.h"
#include "collectives/engine/call/pending_call.h"
#include "transport/endpoint.h"

namespace tarpon {

class CallBlame {
 public:
  /// The references outlive the CallBlame.
  struct Call {
    const PendingCall& call;
    const Endpoint& endpoint;
    const OperationHandle& handle;  // open while a function of CallBlame runs
    const ClosedStages& closed;
    Rank rank = 0;
    std::uint16_t world = 1;
    bool forwards = false;         // ranks send on data that they receive
    const std::uint64_t& unknown;  // bit r: rank r may have begun, this rank cannot know
    Time submitted{};              // by the caller
    Time began{};                  // behind the calls of its tag
    Time deadline{};
    const std::vector<Rank>& behind;  // late ranks of the calls of its tag that it waited for
  };

  explicit CallBlame(const Call& call) : call_(call) {}

  /// Returns the ranks that the call waits for: the ranks that have not begun it. If all have, the
  /// ranks whose message of the earliest stage is incomplete. If ranks forward data, one silent
  /// rank can delay the messages of others: then the silent ranks come first. Once all messages are
  /// complete, the silent ranks that have not confirmed this rank's messages.
  std::vector<Rank> absent() const;

  /// Returns the ranks to blame if the call ends now: absent(). A call that spent most of its time
  /// queued behind earlier calls blames the ranks that were late in those calls.
  std::vector<Rank> late() const;

  /// The same ranks in words, for a call that reaches its deadline.
  std::string late_text(const std::vector<Rank>& late) const;

  /// Whether the rank that gave the call up at its deadline was cut off itself. It was not if this
  /// rank began after that. It was if it lacks more than half of the ranks. It also was if it is
  /// the only rank that this rank lacks: the others' shards are here, so they had this rank's data.
  bool is_cut_off(const Event& late_abort) const;

  /// Returns the late ranks of a call that `late_abort` ends: the ranks that it names and this rank
  /// lacks; its sender if there are none, or it is_cut_off().
  std::vector<Rank> late_by(const Event& late_abort) const;

  /// Says how many ranks answer, if some are silent. An exact call runs to its deadline only while
  /// all ranks are live.
  std::string silence_text() const;

  /// Whether an exact call of 0 elements has not heard every rank yet. It moves no data, but the
  /// ranks still have to agree that it has none.
  bool unheard() const;

 private:
  /// The other ranks that take part. Bit r: rank r.
  std::uint64_t peers() const;
  std::vector<Rank> not_begun() const;
  std::vector<Rank> incomplete() const;
  bool queued_too_long() const;

  const Call call_;
};

}  // namespace tarpon
