// READYs of open operations: they announce an operation to its peers, and repeated they ask. Where
// DATA goes out at once and the peer needs no more than the initial credit, DATA itself announces
// the operation, and READY follows only when nothing is heard.
//
// Not thread-safe. No clock inside.
#pragma once

#include "transport/operation/alarm.h"
#include "transport/operation/operation.h"
#include "transport/operation/receiver.h"
#include "transport/peers/control_queue.h"
#include "transport/peers/participants.h"
#include "transport/tags/tag_history.h"

namespace tarpon {

class Announcer {
 public:
  /// All outlive it.
  struct Parts {
    const EndpointOptions& options;
    const Participants& participants;
    const Receiver& receiver;  // for its delays
    ControlQueue& control;
    Alarm& alarm;
  };
  explicit Announcer(const Parts& parts) : parts_(parts) {}

  /// The operation begins: says when its first READY to each peer leaves. `advertises`: this rank
  /// advertises another credit than the initial one; READY tells it early.
  void begin(Operation& operation, bool advertises, Time now);
  /// The first packet of `peer` has come. It gets a READY if none has left: that tells the terms,
  /// and to a peer that gets no DATA from this rank it is the only sign of life.
  void heard(const Operation& operation, Rank peer);
  /// Asks all peers for their CLOSED, until it comes: any one of them may say that the shard of a
  /// rank which is behind this one is void. Without that news this rank would wait for that rank.
  void ask_for_ends(Operation& operation, Time now);
  /// Queues the READYs that are due. Asks for confirmations, and how far peers are, where this rank
  /// waits for that. Returns when it has to run again. `tag_state`: of the operation.
  Time run(Operation& operation, const TagState& tag_state, Time now);

 private:
  Time ask_for_confirmations(Operation& operation, Time now);
  void ask_who_has_passed(Operation& operation, const TagState& tag_state, Time now);
  void send(Operation& operation, Rank peer, Time now);

  const Parts parts_;
};

}  // namespace tarpon
