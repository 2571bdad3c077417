// A running bounded all_gather. Each rank sends its part to all others, in one stage. What has come
// by the end lies in the output; the call touches nothing else there.
//
// Not thread-safe, except for the pieces of work (piece.h), which run outside.
#pragma once

#include <memory>
#include <vector>

#include "collectives/engine/bounded/call_layout.h"
#include "collectives/engine/bounded/clocked_call.h"
#include "collectives/engine/call/buffers.h"

namespace tarpon {

class GatherCall : public ClockedCall {
 public:
  /// Opens the operation on `endpoint`, as its last step. `submitted` is when the caller asked.
  /// REQUIRES: a bounded all_gather. Throws std::bad_alloc.
  GatherCall(const Setting& setting, const std::shared_ptr<PendingCall>& call, Endpoint& endpoint,
             Time submitted, Time now);

 private:
  OperationSpec specify(Time now);
  bool advance(Time now) override;
  void finish(Time now) override;
  void complete_output() override;
  Duration closing_work() const override;
  std::uint64_t bytes_to_copy() const;

  const CallLayout layout_;
  BufferSource own_;
  std::vector<BufferSink> parts_;  // in the order of the layout's other shards
};

}  // namespace tarpon
