// A call that is submitted, and not yet back with its caller.
#pragma once

#include <atomic>
#include <string>

#include "collectives/engine/call/call_arguments.h"

namespace tarpon {

/// A submitted call. Shared by the caller and the engine; any thread may read `report` once `done`.
/// The buffers are the caller's then: no piece works on them, and the port points into none.
struct PendingCall {
  CallArguments arguments;
  Report report;
  bool nonfinite = false;  // the input holds NaN or infinity; for calls that may run bounded
  std::string note = {};   // for end()
  std::atomic<bool> done = false;

  /// Ends the call, whose report is filled but for `note`, which is appended to its detail.
  void end() {
    if (!note.empty()) report.detail += (report.detail.empty() ? "" : "; ") + note;
    done = true;
  }
};

}  // namespace tarpon
