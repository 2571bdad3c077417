#include "tools/launch/run_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <variant>

#include "collectives/environment/environment_options.h"
#include "collectives/gloo/settings.h"
#include "tools/cli/environment_variables.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/voice.h"
#include "tools/launch/exec_program.h"
#include "tools/launch/program_secret.h"
#include "tools/system/shared_object.h"
#include "tools/system/subprocess.h"
#include "transport/integrity.h"

namespace tarpon {
namespace {

namespace fs = std::filesystem;

constexpr char kShim[] = "libtarpon_gloo.so";
constexpr char kLibraryFolder[] = TARPON_LIBRARY_FOLDER;  // as seen from the installed tool

/// Where the shim lies: installed beside this program, or in its build folder.
std::optional<std::string> find_shim() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  const fs::path folder = self.parent_path();
  for (const char* place : {kLibraryFolder, "../collectives/gloo"}) {
    const fs::path shim = (folder / place / kShim).lexically_normal();
    if (fs::exists(shim, error)) return shim.string();
  }
  return std::nullopt;
}

/// The file that a shell would run for `program`; empty where there is none.
fs::path find_program(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    fs::path file = fs::path(folder.empty() ? "." : folder) / program;
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

/// The Python that runs `program`: itself, or that of the script's first line; empty: none.
std::string python_of(const std::string& program) {
  const fs::path file = find_program(program);
  std::error_code error;
  if (!fs::is_regular_file(file, error) || ::access(file.c_str(), X_OK) != 0) return "";
  if (file.filename().string().starts_with("python")) return file.string();
  std::string line(256, '\0');
  std::ifstream script(file, std::ios::binary);
  if (!script.read(line.data(), 2) || !line.starts_with("#!")) return "";
  std::getline(script, line);
  std::istringstream words(line);
  std::string interpreter;
  for (std::string word; words >> word;) {
    if (fs::path(word).filename() == "env" || word.starts_with('-')) continue;
    interpreter = word;
    break;
  }
  return fs::path(interpreter).filename().string().starts_with("python") ? interpreter : "";
}

/// Programs that run the program which is named behind their own options.
bool is_wrapper(const std::string& program) {
  static const std::set<std::string> kWrappers{
      "chrt",   "env",  "ionice", "mpiexec", "mpirun",  "nice", "nohup",   "numactl", "orterun",
      "setsid", "srun", "stdbuf", "sudo",    "taskset", "time", "timeout", "valgrind"};
  return kWrappers.contains(fs::path(program).filename().string());
}

/// The Python that runs the command, behind wrappers too; empty: none.
std::string python_of(const std::vector<std::string>& command) {
  std::string python = python_of(command[0]);
  for (std::size_t i = 1; python.empty() && i < command.size() && is_wrapper(command[0]); ++i) {
    python = python_of(command[i]);
  }
  return python;
}

void set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

void set_variables(const RunOptions& options, const cli::Invocation& invocation) {
  if (options.bounded) set("TARPON_MODE", "bounded");
  if (options.loss_target) set("TARPON_LOSS_TARGET", cli::share_text(*options.loss_target));
  if (options.bound) set("TARPON_BOUND", fmt::format("{}us", *options.bound / 1us));
  if (invocation.given("--deadline")) {
    set("TARPON_DEADLINE", fmt::format("{}us", options.deadline / 1us));
  }
  if (invocation.given("--bounded-min")) {
    set("TARPON_BOUNDED_MIN", std::to_string(options.bounded_min));
  }
  if (invocation.given("--codec")) set("TARPON_CODEC", std::string(name(options.codec)));
  if (invocation.given("--datapath")) set("TARPON_DATAPATH", std::string(name(options.datapath)));
  if (options.interface) set("TARPON_INTERFACE", *options.interface);
  if (options.integrity) set("TARPON_INTEGRITY", std::string(name(*options.integrity)));
  if (options.required) set("TARPON_REQUIRE", "1");
  if (options.told) set("TARPON_DEBUG", "INFO");
}

/// The settings that the shim will read, or one line on a variable that it would refuse.
std::variant<gloo_shim::Settings, std::string> settings_of_shim() {
  const Environment environment = process_environment();
  if (const auto shared = read_settings(environment); !shared) return shared.error().message;
  return gloo_shim::read_settings(environment);
}

void preload(const std::string& shim) {
  const char* const others = std::getenv("LD_PRELOAD");
  const bool has_others = others != nullptr && *others != '\0';
  set("LD_PRELOAD", has_others ? fmt::format("{}:{}", shim, others) : shim);
}

}  // namespace

void add_run_options(cli::OptionTable& table, RunOptions& options) {
  const cli::Choices<bool> modes{{"exact", false}, {"bounded", true}};
  const cli::Choices<CodecRule> codecs{
      {"auto", CodecRule::automatic}, {"off", CodecRule::off}, {"on", CodecRule::on}};
  const cli::Choices<Datapath> datapaths{{"auto", Datapath::automatic},
                                         {"xdp", Datapath::xdp},
                                         {"uring", Datapath::uring},
                                         {"mmsg", Datapath::mmsg}};
  const cli::Choices<tarpon_integrity> integrities{{"keyed", TARPON_INTEGRITY_KEYED},
                                                   {"sealed", TARPON_INTEGRITY_SEALED}};
  table.add("Calls",
            {{"--mode", cli::choice(options.bounded, modes),
              "bounded: sums of float32, float16 and bfloat16 end by their bound, with what has "
              "arrived; all others stay exact"},
             {"--loss-target", cli::share(options.loss_target),
              "mean share that bounded calls may lose so that they end early (0.1%)"},
             {"--bound", cli::duration(options.bound),
              "time of a bounded call, instead of one that follows --loss-target"},
             {"--bounded-min", cli::size(options.bounded_min), "calls up to this size stay exact"},
             {"--deadline", cli::duration(options.deadline),
              "hard limit of a bounded call; exact ones have the program's own timeout"},
             {"--codec", cli::choice(options.codec, codecs),
              "whether bounded float32 travels as Hadamard coefficients"}});
  table.add("Network",
            {{"--interface", cli::interface_name(options.interface),
              "the interface that carries the job; else the one that Gloo uses"},
             {"--datapath", cli::choice(options.datapath, datapaths), "how packets are moved"},
             {"--integrity", cli::choice(options.integrity, integrities),
              "keyed: packets carry tags; sealed: payloads are encrypted too"}});
  table.add("Messages",
            {{"--require", cli::flag(options.required),
              "where Tarpon cannot carry the AllReduces, the program fails instead of going on "
              "with Gloo"},
             {"--verbose", cli::flag(options.told), "at exit each rank says what was carried"}});
  add_program(table, options.command);
  table.note(
      "The program needs no change: its AllReduces through the system's libgloo, those of PyTorch "
      "with the backend gloo included, go by Tarpon, everything else stays with Gloo. Every rank "
      "has to be started so. A PyTorch that has Gloo inside, as its wheels have, cannot be "
      "reached: use the package tarpon_torch there.");
  table.note(
      "Options become the variables of the same names, which the ranks read. A variable that is "
      "set already holds where its option is not given.");
  table.note(
      "With --integrity a job needs a secret. If no variable names one, and PROGRAM starts the "
      "ranks, they get a new one; ranks on other hosts do not: name a TARPON_SECRET_FILE there.");
  std::vector<cli::Variable> variables = call_variables();
  for (cli::Variable& one : network_variables()) variables.push_back(std::move(one));
  table.environment(std::move(variables));
  table.exit_codes(
      "Exit code: that of the program; 1 where Tarpon cannot carry the calls and --require is "
      "given; "
      "2 wrong usage, or a wrong value of a variable; 127 the program was not found.");
}

std::optional<std::string> obstacle_to_preload(const std::vector<std::string>& command) {
  const std::string python = python_of(command);
  if (python.empty()) return std::nullopt;
  const auto origin =
      run_subprocess({.arguments = {python, "-c",
                                    "import importlib.util as u; s = u.find_spec('torch'); "
                                    "print(s.origin if s and s.origin else '')"}});
  if (!origin) return std::nullopt;  // the program itself will say what is wrong with its Python
  std::string module = *origin;
  while (!module.empty() && std::isspace(static_cast<unsigned char>(module.back()))) {
    module.pop_back();
  }
  if (module.empty()) return std::nullopt;
  const fs::path library = fs::path(module).parent_path() / "lib" / "libtorch_cpu.so";
  std::error_code error;
  if (!fs::exists(library, error)) return std::nullopt;  // a distribution's, among its libraries
  const auto needed = needed_libraries(library.string());
  if (!needed) return std::nullopt;
  const bool from_outside = std::any_of(needed->begin(), needed->end(), [](const std::string& one) {
    return one.starts_with("libgloo.so");
  });
  if (from_outside) return std::nullopt;
  return fmt::format(
      "{} has Gloo inside, where a preload does not reach: its AllReduces stay with Gloo. Instead, "
      "in the program: import tarpon_torch and init_process_group(\"tarpon\"), or "
      "tarpon_torch.bounded_hook(ddp)",
      library.string());
}

int run_program(const RunOptions& options, const cli::Invocation& invocation) {
  const auto shim = find_shim();
  if (!shim) {
    Voice().error(fmt::format(
        "{} is neither in {} nor in the build folder, beside this program: this build has no "
        "shim for Gloo (it needs libgloo-dev)",
        kShim, kLibraryFolder));
    return kFailed;
  }
  set_variables(options, invocation);
  const auto settings = settings_of_shim();
  if (const auto* const wrong = std::get_if<std::string>(&settings)) {
    Voice().error(*wrong);
    return kUsage;
  }
  if (const auto given = give_program_secret(process_environment()); !given) {
    return report(given.error());
  }
  if (const auto obstacle = obstacle_to_preload(options.command)) {
    Voice().error(*obstacle);
    if (gloo_shim::requires_tarpon(process_environment())) return kFailed;
  }
  preload(*shim);
  return exec_program(options.command);
}

}  // namespace tarpon
