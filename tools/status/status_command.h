// `tarpon status`: what the running ranks of this host are doing.
#pragma once

#include "tools/cli/option_table.h"

namespace tarpon {

struct StatusOptions {
  bool json = false;
};

void add_status_options(cli::OptionTable& table, StatusOptions& options);

/// Returns 0, also when no rank runs.
int run_status(const StatusOptions& options);

}  // namespace tarpon
