#include "tools/info_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "tools/host_info.h"
#include "tools/info.h"
#include "tools/version.h"

namespace tarpon {

void add_info_options(cli::OptionTable& table, InfoOptions& options) {
  table.add("Options", {{"--json", cli::flag(options.json), "one JSON object instead of text"}});
  table.note(
      "The data paths are those of the interface that a job of several hosts would take, else of "
      "loopback; tarpon doctor says more of each interface. Changes nothing.");
}

int run_info(const InfoOptions& options, const cli::Invocation& invocation) {
  const auto sections = read_info(process_environment());
  if (!options.json) {
    fmt::print("{}", info_text(sections));
    return 0;
  }
  const HostInfo host = read_host_info();
  const nlohmann::json all{{"config",
                            {{"command", invocation.command_line},
                             {"version", kVersion},
                             {"git_commit", kGitCommit},
                             {"hostname", host.hostname},
                             {"kernel", host.kernel},
                             {"cpu", host.cpu_model},
                             {"cpus", host.cpus}}},
                           {"results", info_results(sections)}};
  fmt::print("{}\n", all.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

}  // namespace tarpon
