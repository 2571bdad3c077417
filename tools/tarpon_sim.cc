// The program of the simulators: `tarpon-sim seeds` and `tarpon-sim scale`. It is for developers
// and researchers. ./dev sim builds it; an installation has only tools/tarpon.cc.
#include <algorithm>
#include <vector>

#include "tools/cli/program/help_command.h"
#include "tools/cli/program/run_program.h"
#include "tools/scale/scale_command.h"
#include "tools/simulation/seeds/sim_command.h"
#include "tools/version.h"

int main(int argc, char** argv) {
  using namespace tarpon;
  const cli::About about{
      .name = "tarpon-sim",
      .version = kVersion,
      .build = kGitCommit,
      .summary = "jobs of Tarpon in virtual time, and a model of many ranks",
      .exit_codes =
          "Exit code: 0 all is well; 1 it failed, or a seed is bad; 2 wrong usage; 128 + N: "
          "ended by signal N.",
      .environment = {}};
  const cli::Catalogue catalogue(
      about, {cli::command("seeds", "run seeds of the simulation, and judge each", add_sim_options,
                           run_sim),
              cli::command(
                  "scale",
                  "a model of up to 4096 ranks: ring, halving-doubling and TAR beside bounded TAR",
                  add_scale_options, run_scale),
              cli::command("help", "help of a command, or its manual page", cli::add_help_options,
                           cli::run_help)});
  return cli::run_program(catalogue, {argv + std::min(argc, 1), argv + argc});
}
