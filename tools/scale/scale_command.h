// `tarpon-sim scale`: what the scale model (tools/scale/) says about many ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/cli/option_table.h"

namespace tarpon {

/// As the user wrote them; run_scale() reads the units.
struct ScaleOptions {
  std::string ranks = "8..256";
  std::vector<std::string> algorithms = {"ring", "halving-doubling", "tar", "bounded"};
  std::string bytes = "25M", rate = "10gbit", egress_rate, queue = "1M", burst = "0", core = "none",
              delay = "25us", loss = "0.1%", stragglers = "0.2%", bound = "learnt", loss_target,
              background = "none", background_burst = "64K", tail_loss = "probe";
  std::string repair = "all";
  double tail = 1.5;
  std::uint32_t mtu = 1500, frame = 38, operations = 0, train = 0;
  std::uint64_t seed = 1;
  unsigned threads = 0;
  std::string late = "0ms";
  std::string delay_trace, straggler_trace;  // paths; empty: none
  std::string json, svg;
};

void add_scale_options(cli::OptionTable& table, ScaleOptions& options);

/// Returns 0; 1 when a file could not be written; 2 for wrong usage, said in one line.
int run_scale(const ScaleOptions& options);

}  // namespace tarpon
