// `tarpon testbed`: any program, one process per network namespace of the testbed.
#pragma once

#include <string>
#include <vector>

#include "tools/job/options/job_options.h"

namespace tarpon {

struct TestbedCommandOptions {
  JobOptions job;
  std::vector<std::string> command;
};

void add_testbed_options(cli::OptionTable& table, TestbedCommandOptions& options);

/// Runs the command once per rank, with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR, MASTER_PORT) and {rank} replaced in its arguments. The interface is eth0. Returns 0
/// when all end well.
int run_testbed(TestbedCommandOptions options);

}  // namespace tarpon
