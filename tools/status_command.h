// `tarpon status`: what the running ranks of this host are doing.
#pragma once

#include "tools/cli_fwd.h"

namespace tarpon {

struct StatusOptions {
  bool json = false;
};

void add_status_options(CLI::App& app, StatusOptions& options);

/// Returns 0, also when no rank runs.
int run_status(const StatusOptions& options);

}  // namespace tarpon
