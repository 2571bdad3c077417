// Runs a program such as `ip` and waits for it, boundedly.
#pragma once

#include <string>
#include <vector>

#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

struct Subprocess {
  std::vector<std::string>
      arguments;               // the first is looked up in PATH, then in /usr/sbin and /sbin
  std::string input = {};      // its standard input
  int network_namespace = -1;  // file descriptor of the one to run it in; -1: ours
  Duration limit = 10s;        // killed after that
};

/// Returns its standard output. Errors: unavailable (no such program), timeout, io (it failed;
/// the message quotes the first line of its standard error). Any thread.
Result<std::string> run_subprocess(const Subprocess& subprocess);

}  // namespace tarpon
