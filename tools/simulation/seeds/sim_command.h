// `tarpon-sim seeds`: runs seeds of the simulation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/cli/command.h"

namespace tarpon {

struct SimOptions {
  std::uint64_t seed = 1;
  std::uint64_t seeds = 1;
  unsigned jobs = 0;
  std::string faults = "all";
  std::string failures;                // file; empty: none
  std::optional<std::uint64_t> marks;  // nullopt: by the number of seeds
  std::string events;                  // file; empty: none
  std::string delays;                  // files of traces; empty: none
  std::string stragglers;
};

void add_sim_options(cli::OptionTable& table, SimOptions& options);

/// Returns 0, 1 when a promise was broken or something was reached too rarely, or 2 for options
/// that make no sense.
int run_sim(const SimOptions& options, const cli::Invocation& invocation);

}  // namespace tarpon
