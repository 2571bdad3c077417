// `tarpon info`: this build, this processor and this host, on one screen.
#pragma once

#include "tools/cli/command.h"

namespace tarpon {

struct InfoOptions {
  bool json = false;
};

void add_info_options(cli::OptionTable& table, InfoOptions& options);

/// Changes nothing. Returns 0.
int run_info(const InfoOptions& options, const cli::Invocation& invocation);

}  // namespace tarpon
