// What a grid (collectives/grid) needs of a communicator for its calls.
//
// A live job has JobCommunicator behind it, a test engines in virtual time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "collectives/engine/call/pending_call.h"
#include "collectives/engine/refusal.h"
#include "transport/rank.h"

namespace tarpon {

/// The rank that has ended all calls of a communicator, and its reason.
struct Abort {
  Rank rank = 0;
  std::string reason;
};

/// A live job allows calls from any thread; no function waits.
class CallRunner {
 public:
  virtual ~CallRunner() = default;

  /// Starts a call of any tag. Where memory for the call is refused, it ends as aborted on all
  /// ranks. REQUIRES: the call does not follow.
  virtual std::shared_ptr<PendingCall> submit(const CallArguments& arguments) = 0;
  /// Why a call with these arguments would be refused; nullopt: it would not.
  virtual std::optional<Refusal> refusal(const AllreduceArguments& arguments) const = 0;
  /// The abort that has ended this communicator; nullopt: none.
  virtual std::optional<Abort> aborted() const = 0;
  /// As Communicator::abort().
  virtual void abort(const std::string& reason) = 0;
  /// Says goodbye without waiting for the others.
  virtual void leave_at_once() = 0;

 protected:
  CallRunner() = default;
  CallRunner(const CallRunner&) = default;
  CallRunner& operator=(const CallRunner&) = default;
};

}  // namespace tarpon
