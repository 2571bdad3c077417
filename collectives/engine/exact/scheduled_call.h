// One exact AllReduce that runs, by the Schedule of its algorithm.
//
// It ends when the result is whole and no peer can need its buffers: the receivers of its messages
// have confirmed them. If all messages are one piece, the call may keep a copy of it instead. It
// copies a small piece at once, and a large one when confirmations take longer than the copy would.
// At its deadline a call without a copy ends without confirmations. Ranks that still lack data end
// it as late.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine/call/running_call.h"
#include "collectives/engine/exact/schedule_executor.h"

namespace tarpon {

class ScheduledCall : public RunningCall {
 public:
  /// As TarCall. REQUIRES: may_run_bounded() is false.
  ScheduledCall(const Setting& setting, std::shared_ptr<PendingCall> call, Endpoint& endpoint,
                Time submitted, Time now);
  ~ScheduledCall() override;

  /// A late rank may hold up messages of other ranks. So where all ranks have begun, silent ranks
  /// are to blame before ranks whose messages are incomplete.
  std::vector<Rank> absent_ranks() const override;

 private:
  void on_progress(const Event&, Time) override {}
  bool advance(Time now) override;
  Time wake_at() const override { return wake_at_; }
  void finish(Time now) override;
  OperationSignature signature() const override;
  ScheduleExecutor make_executor();
  bool forwards() const override { return true; }
  bool keeps() const { return executor_.kept_stage() != ScheduleExecutor::kNoStage; }
  bool confirmed() const;
  bool may_finish(Time now) const;
  void copy_kept(Time now);
  void end_whole(Time now);

  std::optional<FloatBufferPool::Buffer> partials_;
  ScheduleExecutor executor_;
  std::unique_ptr<Retained> copy_;  // of the kept piece, until the endpoint keeps it
  Time settle_at_ = kNever;         // until then confirmations may save the copy
  Time wake_at_ = kNever;           // when step() should look again
  bool finishing_ = false;          // the kept piece is being copied, or has been
};

}  // namespace tarpon
