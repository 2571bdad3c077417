// One AllReduce on its way: the schedule laid out on an endpoint, and the report at its end.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine.h"
#include "collectives/executor/buffers.h"
#include "collectives/executor/reducer.h"
#include "collectives/schedule.h"
#include "collectives/signature.h"

namespace tarpon {

class AllreduceOperation {
 public:
  struct Setting {
    Rank rank = 0;
    std::uint16_t world = 1;
    std::uint32_t slot_bytes = 0;
  };

  /// Opens the operation on `endpoint`. `submitted` is when the caller asked.
  AllreduceOperation(const Setting& setting, std::shared_ptr<PendingCall> call, Endpoint& endpoint,
                     Time submitted, Time now);

  OperationHandle handle() const { return handle_; }

  void on_event(const Event& event, Time now);

  /// Moves on after deliveries. True once the operation is over and closed at the endpoint; the
  /// report is filled then.
  bool step(Time now);

  /// When step() should run even if nothing arrives.
  Time next_deadline() const;

  /// Ends it now; fills the report.
  void end(Status status, std::string detail, Time now);
  bool over() const { return over_; }
  void give_up(Time now);

  /// Once over: until when to wait for the port to send what it still holds of the buffers.
  Time release_by() const;

  /// The port holds nothing of the buffers any more: completes them, and the call is done.
  void release();

  PendingCall& call() { return *call_; }

  /// Whom it is waiting for.
  std::vector<Rank> absent_ranks() const;

 private:
  OperationSignature signature() const;
  OperationSpec specify(Time now);
  void add_scatter(OperationSpec& spec);
  void add_gather(OperationSpec& spec);
  bool may_finish(Time now);
  Duration settling(Time now) const;
  bool unheard() const;
  bool confirmed() const;
  bool silent(Rank rank) const;
  void on_abort(const Event& event, Time now);
  void finish(Time now);
  void fill_missing();
  void report_loss();
  void add_runs(std::uint64_t first_byte, std::uint64_t bytes,
                const std::vector<std::uint64_t>& contributors);
  std::unique_ptr<Retained> retain() const;
  void end_at_deadline(Time now);

  const Setting setting_;
  std::shared_ptr<PendingCall> call_;
  Endpoint& endpoint_;
  const Schedule schedule_;
  const std::byte* input_;
  std::byte* output_;
  Reducer reducer_;
  std::vector<BufferSource> scatter_;
  std::vector<BufferSink> gather_;
  OperationHandle handle_;
  const Time submitted_;
  const Time deadline_;
  Time whole_since_ = kNever;  // when the result was complete, or closed by its bound
  Time settle_at_ = kNever;    // until then confirmations may save the copy of our shard
  Time wake_at_ = kNever;      // when step() should look again
  Time fail_at_ = kNever;      // after a mismatch: when to stop collecting whom it concerns
  bool scatter_closed_ = false;
  bool gather_closed_ = false;
  bool gather_complete_ = false;
  bool over_ = false;
};

}  // namespace tarpon
