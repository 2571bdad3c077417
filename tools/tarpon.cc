// The one binary: `tarpon COMMAND`. A new command is a row of this table and its own files.
#include <algorithm>
#include <string>
#include <vector>

#include "tools/check/check_command.h"
#include "tools/cli/environment_variables.h"
#include "tools/cli/program/completion_command.h"
#include "tools/cli/program/help_command.h"
#include "tools/cli/program/run_program.h"
#include "tools/collective/collective_options.h"
#include "tools/doctor/doctor_command.h"
#include "tools/doctor/info_command.h"
#include "tools/flight/flight_command.h"
#include "tools/launch/run_command.h"
#include "tools/launch/testbed_command.h"
#include "tools/status/status_command.h"
#include "tools/version.h"
#include "tools/xdp/xdp_command.h"

namespace {

using tarpon::cli::command;
using tarpon::cli::family;

/// Help and completion show the commands in this order.
std::vector<tarpon::cli::Command> commands() {
  using namespace tarpon;
  std::vector<cli::Command> commands = collective_commands();
  const std::vector<cli::Command> others{
      command("check", "probe every pair of ranks", add_check_options, run_check),
      command("completion", "print a script that completes command lines in a shell",
              cli::add_completion_options, cli::run_completion),
      command("doctor", "which data paths an interface can use, and what they lack",
              add_doctor_options, run_doctor),
      command("flight", "what went wrong first, from the ranks' flight recordings",
              add_flight_options, run_flight),
      command("help", "help of a command, or its manual page", cli::add_help_options,
              cli::run_help),
      command("info", "versions, build, instruction sets, data paths, limits and paths",
              add_info_options, run_info),
      command("run", "run a program of PyTorch or Gloo, its AllReduces carried by Tarpon",
              add_run_options, run_program),
      command("status", "what the running ranks of this host are doing", add_status_options,
              run_status),
      command("testbed", "run any program once per network namespace of the testbed",
              add_testbed_options, run_testbed),
      family("xdp", "load our XDP program, show what is attached, remove it"),
      command("xdp load", "attach our XDP program to an interface, to stay", add_xdp_load_options,
              run_xdp_load),
      command("xdp serve", "give AF_XDP sockets to ranks without root", add_xdp_serve_options,
              run_xdp_serve),
      command("xdp status", "what is attached, our ports, sockets and counters",
              add_xdp_status_options, run_xdp_status),
      command("xdp unload", "remove our program from an interface, nobody else's",
              add_xdp_unload_options, run_xdp_unload),
      command("xdp clean", "remove what dead owners left: pins, ports, shared programs",
              add_xdp_clean_options, run_xdp_clean),
  };
  commands.insert(commands.end(), others.begin(), others.end());
  return commands;
}

tarpon::cli::About about() {
  return {.name = "tarpon",
          .version = tarpon::kVersion,
          .build = tarpon::kGitCommit,
          .summary = "AllReduce with a bounded, predictable completion time on ordinary Ethernet",
          .exit_codes =
              "Exit code: 0 all is well; 1 it failed, results are wrong, or a pair is bad; "
              "2 wrong usage; 3 a loss budget halted the run; 128 + N: ended by signal N.",
          .environment = tarpon::environment_variables()};
}

}  // namespace

int main(int argc, char** argv) {
  const tarpon::cli::Catalogue catalogue(about(), commands());
  return tarpon::cli::run_program(catalogue, {argv + std::min(argc, 1), argv + argc});
}
