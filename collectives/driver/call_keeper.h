// What has calls that were started, and can wait for them: the state of a communicator.
#pragma once

#include <memory>

#include "collectives/engine/call/pending_call.h"
#include "xdp/base/result.h"

namespace tarpon {

class CallKeeper {
 public:
  virtual ~CallKeeper() = default;
  /// As Communicator::check_process().
  virtual Result<void> check_process() const = 0;
  /// Returns when `call` is done. Any thread.
  virtual void wait(const std::shared_ptr<PendingCall>& call) = 0;
};

}  // namespace tarpon
