// A running call that may be bounded. It runs exact if it calibrates a bound. Its schedule is TAR.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine/bounded/bound_clock.h"
#include "collectives/engine/bounded/bound_lesson.h"
#include "collectives/engine/bounded/call_layout.h"
#include "collectives/engine/bounded/output_completion.h"
#include "collectives/engine/bounded/reducer.h"
#include "collectives/engine/call/buffers.h"
#include "collectives/engine/call/running_call.h"
#include "collectives/engine/coded/coding.h"

namespace tarpon {

class TarCall : public RunningCall {
 public:
  /// Opens the operation on `endpoint`, as its last step. `coding`: the encoded bucket of a coded
  /// call, else null. `submitted` is when the caller asked. Throws std::bad_alloc if a buffer of
  /// the call is refused.
  TarCall(const Setting& setting, std::shared_ptr<PendingCall> call, std::unique_ptr<Coding> coding,
          Endpoint& endpoint, Time submitted, Time now);
  ~TarCall() override;

 private:
  Reducer::Shape reducer_shape(Mode mode);
  BoundClock::Call clock_call();
  OperationSignature signature() const;
  OperationSpec specify(Time now);
  void add_scatter(OperationSpec& spec);
  void add_gather(OperationSpec& spec);

  void on_progress(const Event& event, Time now) override;
  bool advance(Time now) override;
  void finish(Time now) override;
  void complete_output() override;
  void released(Time now) override { lesson_.teach(began_, now); }
  void update_limit();
  std::optional<Time> cut_at() const;

  Duration work_left(bool with_copy) const;
  void close_for_work(Time now);
  bool retains() const;
  bool may_finish(Time now);
  Duration settling(Time now) const;
  bool serves_afterwards() const;
  bool confirmed() const;
  bool copies() const;
  bool drops_copy(Time now) const;
  void settle();
  void retain();
  void end_whole(Time now);
  void report_result();
  void report_nonfinite();
  std::uint64_t absent() const;

  std::unique_ptr<Coding> coding_;  // where the call is coded
  const CallLayout layout_;
  std::optional<FloatBufferPool::Buffer> partials_;  // of the reducer, where it uses them
  Reducer reducer_;
  std::vector<BufferSource> scatter_;
  std::vector<BufferSink> gather_;
  BoundClock clock_;
  BoundLesson lesson_;
  OutputCompletion output_;
  std::unique_ptr<Retained> retained_;  // our shard, until the endpoint keeps it
  Time whole_since_ = kNever;           // when the result was complete, or closed by its bound
  Time settle_at_ = kNever;             // until then confirmations may save the copy of our shard
  bool late_self_ = false;              // a peer has ended this bounded call without us
  bool asks_peers_ = false;             // whether they have ended this bounded call without us
  bool gather_complete_ = false;
  bool finishing_ = false;  // our shard is being copied, or has been
};

}  // namespace tarpon
