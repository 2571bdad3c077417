// `tarpon run`: a program of PyTorch or Gloo, with its AllReduces carried by Tarpon.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bpf/wire.h"
#include "collectives/datapath.h"
#include "collectives/mechanisms.h"
#include "tools/cli/command.h"
#include "transport/time.h"

namespace tarpon {

struct RunOptions {
  bool bounded = false;
  std::optional<double> loss_target;
  std::optional<Duration> bound;
  Duration deadline = 10s;
  std::uint64_t bounded_min = 1 << 20;
  CodecRule codec = CodecRule::automatic;
  Datapath datapath = Datapath::automatic;
  std::optional<std::string> interface;
  std::optional<tarpon_integrity> integrity;
  bool required = false;
  bool told = false;
  std::vector<std::string> command;
};

void add_run_options(cli::OptionTable& table, RunOptions& options);

/// Sets the variables of the options that were given, makes a secret by give_program_secret(), puts
/// libtarpon_gloo.so before all other libraries, and becomes the program. Returns only on failure:
/// a variable of the environment that the shim would refuse is one (kUsage).
int run_program(const RunOptions& options, const cli::Invocation& invocation);

/// Returns why the shim cannot carry the PyTorch that `command` would load, and what to do instead;
/// nullopt if it can, or if the program does not run in Python. Looks behind programs that run
/// others, such as env and mpirun. Runs the interpreter, which looks for the module and does not
/// load it. REQUIRES: `command` is not empty.
std::optional<std::string> obstacle_to_preload(const std::vector<std::string>& command);

}  // namespace tarpon
