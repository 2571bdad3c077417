#include "tools/sim_command.h"

#include <fmt/format.h>

#include "tools/progress_line.h"
#include "tools/simulation.h"

namespace tarpon {

void add_sim_options(CLI::App& app, SimOptions& options) {
  app.add_option("--seed", options.seed, "the (first) seed; it fixes everything")
      ->capture_default_str();
  app.add_option("--count", options.count, "how many seeds, counting up")
      ->check(CLI::Range(std::uint64_t{1}, UINT64_MAX))
      ->capture_default_str();
}

int run_sim(const SimOptions& options) {
  ProgressLine progress(options.count > 1);
  std::uint64_t failed = 0;
  for (std::uint64_t i = 0; i < options.count; ++i) {
    const SimulationPlan plan = plan_simulation(options.seed + i);
    const SimulationResult result = run_simulation(plan);
    progress.update(static_cast<double>(i + 1), static_cast<double>(options.count), "seeds");
    if (options.count == 1 || !result.violations.empty()) {
      progress.clear();
      fmt::print("{}\n", describe(plan));
    }
    for (const std::string& violation : result.violations) fmt::print("  broken: {}\n", violation);
    if (!result.violations.empty()) {
      ++failed;
      fmt::print("  repeat: tarpon sim --seed {}\n", plan.seed);
    }
    if (options.count > 1) continue;
    fmt::print(
        "{} calls, {} with something missing, {} packets ({} lost, {} duplicated, {} "
        "reordered, {} corrupted, {} truncated) in {:.3f} ms of virtual time\n",
        result.calls, result.partial, result.packets, result.faults.lost, result.faults.duplicated,
        result.faults.reordered, result.faults.corrupted, result.faults.truncated,
        std::chrono::duration<double, std::milli>(result.virtual_time).count());
    fmt::print("trace hash: {:016x}\n", result.trace_hash);
  }
  progress.clear();
  if (options.count > 1) fmt::print("{} seeds, {} failed\n", options.count, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace tarpon
