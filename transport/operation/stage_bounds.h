// When the stages of bounded operations end: at the time that the caller set, or earlier after
// silence, or later where HoldPolicy says so. The last stage stays open while peers are asked
// whether this rank is late (LatenessCheck).
//
// After prepare() only this class changes Stage::end, Stage::held, Stage::early, Operation::hold
// and Operation::grace. Not thread-safe. No clock inside.
#pragma once

#include <cstddef>

#include "transport/operation/journal.h"
#include "transport/operation/lateness_check.h"
#include "transport/operation/operation.h"
#include "transport/operation/receiver.h"

namespace tarpon {

class StageBounds {
 public:
  /// All arguments outlive it.
  StageBounds(Receiver& receiver, LatenessCheck& lateness, Journal& journal, Alarm& alarm)
      : receiver_(receiver), lateness_(lateness), journal_(journal), alarm_(alarm) {}

  /// The caller has said when the stages end.
  void set(Operation& operation, const StageEnds& ends, Time now);
  /// Ends a stage now.
  void end(Operation& operation, std::size_t stage, Time now);
  /// Lets the deadline alone end the last stage.
  static void lift_last(Operation& operation);

  /// Closes the stages whose time is up. Returns when it has to run again. REQUIRES: the clock of
  /// the operation has started.
  Time run(Operation& operation, Time now);

 private:
  static bool waits(const Operation& operation, std::size_t stage, Time now);
  void extend(Operation& operation, std::size_t first, Time now);

  Receiver& receiver_;
  LatenessCheck& lateness_;
  Journal& journal_;
  Alarm& alarm_;
};

}  // namespace tarpon
