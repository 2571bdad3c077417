// Whether this rank is late: asks the peers of a bounded operation.
//
// Peers close a bounded operation without the last stage of a late rank. The stage is void there,
// so it has to be void at the late rank too. But a late rank may hold everything that it needs to
// end the operation by itself: the packets of its peers have waited for it. So it asks its peers
// whether they are still at the operation. Until they have answered it neither sends its last stage
// nor ends.
//
// Three things make it ask: a peer repeated its READY for long, and this rank has sent nothing of
// its last stage; a peer has closed the operation, and a part of the stage is unsent; its own
// clock. The question is a READY. A peer that has closed the operation answers by CLOSED. Any other
// packet of the operation that left the peer after the question is an answer too: its echo of our
// clock tells. Peers may close the operation while the answer is on its way, so the rank asks once
// more when its last stage has been sent. Between two questions the stage has half of the grace to
// go out: answers may take as long as the grace.
//
// Operation::inquiry holds the state of the question of one operation. Only this class changes it.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstdint>

#include "bpf/wire.h"
#include "transport/operation/alarm.h"
#include "transport/operation/operation.h"
#include "transport/peers/participants.h"
#include "transport/tags/tag_history.h"

namespace tarpon {

class LatenessCheck {
 public:
  /// Both outlive the check.
  LatenessCheck(const Participants& participants, Alarm& alarm)
      : participants_(participants), alarm_(alarm) {}

  /// More of the last stage may go out now, or time has passed: asks the peers if a question is
  /// due.
  void look(Operation& operation, Time now);
  /// A peer has repeated its READY `times` times.
  void note_waiting(Operation& operation, std::uint32_t times, Time now);
  /// Asks one peer, unless it is asked already or dead.
  void ask(Operation& operation, Rank peer, Time now);
  /// The end of the operation is known. This rank asks from `arises` on if it has sent nothing of
  /// its last stage. Before `arises` no bound of a peer has closed the operation.
  void set_time(Operation& operation, Time arises, Time now);
  /// The end of the operation has moved by `by`: this rank asks again near the new one.
  static void extended(Operation& operation, Duration by);
  /// The last stage ends now.
  void end_stage(Operation& operation, Time now);

  /// `peer` has said whether it had anything of ours, or this rank no longer asks it.
  void answered(Operation& operation, Rank peer, Time now);
  /// Takes a packet of the operation: it may be an answer, unless its sender has passed the
  /// operation.
  void note_answer(const TagState& tag_state, Operation& operation, const tarpon_header& header,
                   Time now);

  /// Whether the last stage, whose time is up, stays open until the peers have answered: a late
  /// rank fetches the rest of that stage.
  bool awaits_answers(Operation& operation, Time now);
  /// Asks the peers if a question is due, and stops waiting for answers when their time is over.
  /// Returns when it has to run again.
  Time run(Operation& operation, Time now);

  /// Waits for no answers any more: this rank is late, or the time for them is over.
  void stop(Operation& operation, Time now);

 private:
  void begin(Operation& operation, Time now);
  void ask_all(Operation& operation, Time now);

  const Participants& participants_;
  Alarm& alarm_;
};

}  // namespace tarpon
