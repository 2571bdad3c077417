// The one binary: `tarpon COMMAND`. One file per command.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "tools/allreduce_options.h"
#include "tools/check_command.h"
#include "tools/doctor_command.h"
#include "tools/exit_code.h"
#include "tools/flight_command.h"
#include "tools/scale_command.h"
#include "tools/sim_command.h"
#include "tools/status_command.h"
#include "tools/testbed_command.h"
#include "tools/version.h"
#include "tools/voice.h"
#include "tools/xdp_command.h"

namespace {

constexpr const char* kExitCodes =
    R"(Exit code: 0 all is well; 1 it failed, results are wrong, or a pair or a seed is bad; 2 wrong usage;
3 a loss budget halted the run; 128 + N: ended by signal N.)";

constexpr const char* kEnvironment = R"(

Environment:
  RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID (torchrun);
  OMPI_COMM_WORLD_*, PMI_*, MPI_LOCALNRANKS, PMIX_*, SLURM_* (mpirun, srun): which rank of which job
                         this is, unless --local-ranks or --rank says so
  TARPON_RENDEZVOUS      where the ranks meet, as --rendezvous
  TARPON_INTERFACE       the interface that carries the job, as --interface
  TARPON_SOCKET_IFNAME   interfaces to choose from, as NCCL_SOCKET_IFNAME: names or their beginnings
                         with commas between; ^ in front excludes them, = means whole names
  GLOO_SOCKET_IFNAME     the same with whole names only, where the other is not set
  TARPON_DATAPATH        auto, xdp, uring or mmsg, as --datapath
  TARPON_LOSS_TARGET     as --loss-target, but a --bound stays what it is
  TARPON_FLIGHT          directory for flight recordings, as --flight
  TARPON_PORT            port of the rendezvous at MASTER_ADDR (MASTER_PORT + 1)
  TARPON_DEBUG           VERSION, WARN, INFO or TRACE: what was read and chosen, to standard error
  TARPON_DEBUG_SUBSYS    only these of INIT,NET,CALL
  TARPON_DEBUG_FILE      to this file instead; %h is the host, %p the process)";

/// "Could not convert: --seed = abc", with what would do in its place.
std::string explain_conversion(const CLI::App& app, const std::string& text) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands()[0];
  const std::size_t name_at = text.find(": ") + 2;
  const std::size_t value_at = text.find(" = ");
  if (name_at < 2 || value_at == std::string::npos || value_at < name_at) return text;
  const std::string name = text.substr(name_at, value_at - name_at);
  const CLI::Option* const option = command->get_option_no_throw(name);
  const std::string type = option == nullptr ? "" : option->get_type_name();
  const char* const wanted = type.starts_with("BOOLEAN") ? "0 or 1"
                             : type.starts_with("FLOAT") ? "a number"
                                                         : "a whole number";
  return fmt::format("{}: \"{}\" is not {}", name, text.substr(value_at + 3), wanted);
}

/// CLI11's own message, but it names no mistyped command and turns surplus arguments around.
/// `words`: the arguments.
std::string explain(const CLI::App& app, const CLI::ParseError& error,
                    const std::vector<std::string>& words) {
  const auto parsed = app.get_subcommands();
  if (parsed.empty() && !words.empty()) {
    return fmt::format(
        "\"{}\" is no command: use allreduce, check, doctor, flight, sim, status, "
        "testbed or xdp",
        words[0]);
  }
  if (!parsed.empty() && parsed[0]->get_name() == "xdp" && parsed[0]->get_subcommands().empty()) {
    const std::string known = "use load, status, unload or clean";
    return words.size() < 2 ? "xdp needs a subcommand: " + known
                            : fmt::format("\"xdp {}\" is no command: {}", words[1], known);
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    return fmt::format("not expected: {}", CLI::detail::join(app.remaining(true), " "));
  }
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    return explain_conversion(app, text);
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return text + ": add it as the last argument";
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return text.substr(0, text.find(':')) + " needs a value";
  }
  return text;
}

/// One line that says where help is.
int refuse(const CLI::App& app, const CLI::ParseError& error,
           const std::vector<std::string>& words) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  std::string text = explain(app, error, words);
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  tarpon::Voice().error(text + " (see --help)");
  return tarpon::kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"AllReduce with a bounded, predictable completion time on ordinary Ethernet",
               "tarpon"};
  app.set_version_flag("--version",
                       fmt::format("tarpon {} ({})", tarpon::kVersion, tarpon::kGitCommit));
  app.require_subcommand(1);
  app.footer(std::string(kExitCodes) + kEnvironment);  // of the commands too: it is inherited

  tarpon::AllreduceOptions allreduce;
  CLI::App* allreduce_app =
      app.add_subcommand("allreduce", "average or sum arrays over ranks; benchmark it");
  tarpon::add_allreduce_options(*allreduce_app, allreduce);

  tarpon::CheckOptions check;
  CLI::App* check_app = app.add_subcommand("check", "probe every pair of ranks");
  tarpon::add_check_options(*check_app, check);

  tarpon::FlightCommandOptions flight;
  CLI::App* flight_app =
      app.add_subcommand("flight", "what went wrong first, from the ranks' flight recordings");
  flight_app->footer(kExitCodes);
  tarpon::add_flight_options(*flight_app, flight);

  tarpon::StatusOptions status;
  CLI::App* status_app =
      app.add_subcommand("status", "what the running ranks of this host are doing");
  status_app->footer(kExitCodes);
  tarpon::add_status_options(*status_app, status);

  tarpon::SimOptions sim;
  CLI::App* sim_app = app.add_subcommand("sim", "repeat a seed of the simulation");
  sim_app->footer(kExitCodes);
  tarpon::add_sim_options(*sim_app, sim);

  tarpon::ScaleOptions scale;
  CLI::App* scale_app = sim_app->add_subcommand(
      "scale", "a model of up to 4096 ranks: ring, halving-doubling and TAR beside bounded TAR");
  tarpon::add_scale_options(*scale_app, scale);

  tarpon::TestbedCommandOptions testbed;
  CLI::App* testbed_app =
      app.add_subcommand("testbed", "run any program once per network namespace of the testbed");
  testbed_app->footer(kExitCodes);
  tarpon::add_testbed_options(*testbed_app, testbed);

  tarpon::DoctorOptions doctor;
  CLI::App* doctor_app =
      app.add_subcommand("doctor", "which data paths an interface can use, and what they lack");
  tarpon::add_doctor_options(*doctor_app, doctor);

  tarpon::XdpOptions xdp;
  CLI::App* xdp_app =
      app.add_subcommand("xdp", "load our XDP program, show what is attached, remove it");
  xdp_app->footer(kExitCodes);
  tarpon::add_xdp_options(*xdp_app, xdp);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return refuse(app, error, {argv + std::min(argc, 1), argv + argc});
  }
  if (allreduce_app->parsed()) {
    if (auto settled = tarpon::settle_form(*allreduce_app, allreduce); !settled) {
      return tarpon::report(settled.error());
    }
    return tarpon::run_allreduce(allreduce);
  }
  if (check_app->parsed()) return tarpon::run_check(check);
  if (flight_app->parsed()) return tarpon::run_flight(flight);
  if (status_app->parsed()) return tarpon::run_status(status);
  if (testbed_app->parsed()) return tarpon::run_testbed(testbed);
  if (doctor_app->parsed()) return tarpon::run_doctor(doctor);
  if (xdp_app->parsed()) return tarpon::run_xdp(*xdp_app, xdp);
  if (scale_app->parsed()) {
    for (const CLI::Option* option : sim_app->get_options()) {
      if (option->count() == 0) continue;
      tarpon::Voice().error(
          fmt::format("{} before scale is an option of sim: write the options of scale after it",
                      option->get_name()));
      return tarpon::kUsage;
    }
    return tarpon::run_scale(scale);
  }
  return tarpon::run_sim(sim);
}
