// `tarpon sim`: repeats seeds of the simulation.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace tarpon {

struct SimOptions {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
};

void add_sim_options(CLI::App& app, SimOptions& options);

/// Returns 0, or 1 when a promise was broken.
int run_sim(const SimOptions& options);

}  // namespace tarpon
