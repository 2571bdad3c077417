// The log that TARPON_DEBUG asks for: which variables were read, what was chosen, and why.
//
// TARPON_DEBUG=VERSION|WARN|INFO|TRACE   how much
// TARPON_DEBUG_SUBSYS=INIT,NET,CALL      only these (default: all)
// TARPON_DEBUG_FILE=PATH                 there instead of standard error; %h host, %p process id
//
// VERSION: which tarpon. WARN: what makes a job slower or its figures mean something else. INFO:
// every variable that is read, what the ranks agree on, interface, data path and why. TRACE: each
// call.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "collectives/environment/environment.h"
#include "xdp/base/result.h"

namespace tarpon {

enum class DebugLevel { none, version, warn, info, trace };

class DebugLog {
 public:
  /// Opens the log that the variables ask for and writes at INFO which of them are set. Errors:
  /// invalid_argument (unknown level or subsystem, named), io (file).
  static Result<DebugLog> open(const Environment& environment);

  /// Writes one line if `level` and `subsystem` ("INIT", "NET", "CALL") are enabled.
  void write(DebugLevel level, const char* subsystem, const std::string& text) const;
  bool enabled(DebugLevel level) const { return level <= level_; }

  /// The same environment, which also logs at INFO each variable that is read and set.
  Environment watch(Environment environment) const;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  DebugLevel level_ = DebugLevel::none;
  std::vector<std::string> subsystems_;  // empty: all
  std::shared_ptr<std::FILE> file_;      // null: standard error
};

}  // namespace tarpon
