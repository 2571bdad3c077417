#include "tools/doctor/info_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "tools/cli/files/report_output.h"
#include "tools/doctor/info.h"

namespace tarpon {

void add_info_options(cli::OptionTable& table, InfoOptions& options) {
  table.add("Options", {{"--json", cli::flag(options.json), "one JSON object instead of text"}});
  table.note(
      "The data paths are those of the interface that a job of several hosts would take, else of "
      "loopback; tarpon doctor says more of each interface. Changes nothing.");
}

int run_info(const InfoOptions& options, const cli::Invocation&) {
  const auto sections = read_info(process_environment());
  if (!options.json) {
    fmt::print("{}", info_text(sections));
    return 0;
  }
  const std::string text = json_text(json_report(report_config(), info_results(sections)));
  fmt::print("{}", text);
  return 0;
}

}  // namespace tarpon
