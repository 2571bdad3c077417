// The place of a rank in its job, and what the tool itself gives that rank.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "collectives/environment/launcher.h"
#include "collectives/job_secret.h"
#include "tools/cli/debug_log.h"
#include "tools/cli/voice.h"

namespace tarpon {

struct LaunchPlace : JobPlace {
  /// Set by the testbed, which knows the interface of the rank's namespace.
  std::optional<std::string> interface = std::nullopt;
  /// Where progress may be shown: standard error, unless that is captured.
  int progress_fd = 2;
  /// Of local ranks: what their parent has read or made. Null: the rank looks for one itself.
  std::shared_ptr<const JobSecret> secret = {};
  Voice voice = {};   // prints this rank's errors
  DebugLog log = {};  // opened by the code that starts the rank
};

}  // namespace tarpon
