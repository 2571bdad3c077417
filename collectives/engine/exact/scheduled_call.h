// One exact call that runs by a Schedule: an AllReduce, another collective, or a message.
//
// It ends when the result is whole and no peer can need its buffers: the receivers of its messages
// have confirmed them. If all messages are one piece, the call may keep a copy of it instead. It
// copies a small piece at once, and a large one when confirmations take longer than the copy would.
// At its deadline a call without a copy ends without confirmations. Ranks that still lack data end
// it as late.
#pragma once

#include <memory>
#include <optional>

#include "collectives/engine/call/running_call.h"
#include "collectives/engine/exact/pair_counts.h"
#include "collectives/engine/exact/schedule_executor.h"

namespace tarpon {

class ScheduledCall : public RunningCall {
 public:
  /// As TarCall. REQUIRES: may_run_bounded() is false.
  ScheduledCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                Endpoint& endpoint, Time submitted, Time now);
  ~ScheduledCall() override;

  void rank_absent(Rank rank) override;

 protected:
  /// What runs.
  struct Program {
    Schedule schedule;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;     // where element 0 would be; null: in the call's output
    std::uint64_t contributors = 0;  // ChunkSums::Shape::contributors
    bool provided = false;           // ChunkSums::Shape::provided
    ReduceOp function = ReduceOp::sum;
    std::uint64_t others = 0;  // ScheduleExecutor::Shape::others
  };
  /// The derived class opens the operation, as the last step of its constructor.
  ScheduledCall(const Setting& setting, std::shared_ptr<PendingCall> call, Endpoint& endpoint,
                Time submitted, Time now, Program program);

  OperationSpec specify();
  OperationSignature signature() const;
  bool advance(Time now) override;
  void complete_output() override;
  ScheduleExecutor& executor() { return executor_; }

 private:
  static Program program_of(const Setting& setting, const PendingCall& call);
  void on_progress(const Event&, Time) override {}
  bool owes() const override;
  void finish(Time now) override;
  ScheduleExecutor make_executor(Program program);
  bool keeps() const { return executor_.kept_stage() != ScheduleExecutor::kNoStage; }
  bool confirmed() const;
  bool may_finish(Time now) const;
  void copy_kept(Time now);
  bool counts_differ(Time now);
  void note_lacking(std::uint64_t ranks);
  void end_whole(Time now);

  std::optional<FloatBufferPool::Buffer> partials_;
  ScheduleExecutor executor_;
  std::optional<PairCounts> pair_counts_;  // of an all_to_all with counts
  std::unique_ptr<Retained> copy_;         // of the kept piece, until the endpoint keeps it
  Time settle_at_ = kNever;                // until then confirmations may save the copy
  std::uint64_t lost_receivers_ = 0;       // absent ranks that had not confirmed
  bool finishing_ = false;                 // the kept piece is being copied, or has been
};

}  // namespace tarpon
