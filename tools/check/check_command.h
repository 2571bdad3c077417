// `tarpon check`: probes every pair of ranks in both directions before a job does.
#pragma once

#include "tools/cli/command.h"
#include "tools/job/options/job_options.h"

namespace tarpon {

struct CheckOptions {
  JobOptions job;
  std::uint32_t probes = 20;  // round trips per pair
  std::string json;
};

void add_check_options(cli::OptionTable& table, CheckOptions& options);

/// Returns 0 when every pair works, 1 otherwise.
int run_check(CheckOptions& options, const cli::Invocation& invocation);

}  // namespace tarpon
