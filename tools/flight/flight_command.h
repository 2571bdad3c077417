// `tarpon flight`: merges the flight recordings of a job's ranks and says what went wrong first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/cli/option_table.h"

namespace tarpon {

struct FlightCommandOptions {
  std::vector<std::string> paths;  // files and directories; none: the ranks that run on this host
  std::optional<std::uint32_t> job;
  bool all = false;
  bool verdict = false;  // the verdict alone
  bool json = false;
  std::string svg;  // file; empty: none
};

void add_flight_options(cli::OptionTable& table, FlightCommandOptions& options);

/// Returns 0, or 1 after one line that says what could not be read or written.
int run_flight(const FlightCommandOptions& options);

}  // namespace tarpon
