// A running call with a bound: its clock, and its lesson for the bounds of later calls.
//
// Two kinds of calls derive from it. An AllReduce has two stages, and its ranks keep their shards
// for late ranks. The others have one stage, in which parts go straight to the ranks that need
// them. Their ranks keep nothing. Instead a call stays until live ranks have this rank's data,
// within its bound.
//
// Not thread-safe.
#pragma once

#include <memory>

#include "collectives/engine/bounded/bound_clock.h"
#include "collectives/engine/bounded/bound_lesson.h"
#include "collectives/engine/call/running_call.h"

namespace tarpon {

class ClockedCall : public RunningCall {
 protected:
  /// `coding`: time for encoding and decoding, if the call is coded.
  ClockedCall(const Setting& setting, std::shared_ptr<PendingCall> call, Endpoint& endpoint,
              Time submitted, Time now, const CallKind& kind, Duration coding);

  // -- the operation

  /// What all clocked calls ask of the endpoint: everything but the stages. `slot_bytes`: of the
  /// call.
  OperationSpec common_spec(std::uint32_t slot_bytes, Time now);
  OperationSignature clocked_signature(std::uint32_t slot_bytes) const;

  // -- the clock

  void on_progress(const Event& event, Time now) override;
  void released(Time now) override { lesson_.teach(began_, now); }
  /// Live ranks have kept the call waiting until `now`: it ends later by as much.
  void hold(Time now);
  /// A bounded call ends at its bound, unless this rank is late.
  void update_limit();

  // -- the end

  /// Of a call of one stage, which has closed: whether it may end. The data of this rank goes to
  /// all ranks that take part. A call that waits for the data of live ranks waits as long for their
  /// confirmations, unless these are so few that it would not wait for their data.
  bool may_finish_confirmed(Time now);
  /// report_end(), with the time that the call was held.
  void report_clocked_end(Time now);
  /// Corrects the report of a call of one stage that this rank began after its bound, when data was
  /// gone: this rank was late, not the others.
  void report_late_begin();
  /// Takes what the report teaches. The operation is still open.
  void take_lesson();

  BoundClock clock_;
  BoundLesson lesson_;
  bool late_self_ = false;  // a peer has ended this bounded call without us

 private:
  /// The time that the work on the buffers would take if all stages closed now.
  virtual Duration closing_work() const = 0;
};

}  // namespace tarpon
