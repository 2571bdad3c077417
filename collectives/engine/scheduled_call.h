// One exact AllReduce on its way that runs a Schedule: any algorithm but TAR.
//
// It ends when the result is whole and no peer can need its buffers. Its receivers have then
// confirmed its messages; or, where these are one small piece, a copy is kept for them. At its
// deadline it ends without confirmations, and ranks that still lack data end it as late.
#pragma once

#include <memory>
#include <optional>

#include "collectives/engine/running_call.h"
#include "collectives/engine/schedule_executor.h"

namespace tarpon {

class ScheduledCall : public RunningCall {
 public:
  /// As TarCall. REQUIRES: the call runs exact, by another algorithm than TAR.
  ScheduledCall(const Setting& setting, std::shared_ptr<PendingCall> call, Endpoint& endpoint,
                Time submitted, Time now);
  ~ScheduledCall() override;

  /// A late rank may hold up messages of other ranks. So where all ranks have begun, silent ranks
  /// are to blame before ranks whose messages are incomplete.
  std::vector<Rank> absent_ranks() const override;

 private:
  void on_progress(const Event&, Time) override {}
  bool advance(Time now) override;
  Time wake_at() const override { return all_closed() ? deadline_ : kNever; }
  void finish(Time now) override;
  OperationSignature signature() const override;
  ScheduleExecutor::Shape shape();
  bool forwards() const override { return true; }
  bool may_finish(Time now) const;

  std::optional<FloatBufferPool::Buffer> partials_;
  ScheduleExecutor executor_;
};

}  // namespace tarpon
