#include "collectives/environment/launcher.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "collectives/rendezvous/address.h"
#include "xdp/base/printable.h"

namespace tarpon {
namespace {

constexpr std::int64_t kMaxRanks = kUnknownRank;  // ranks are below it
constexpr std::string_view kDirectoryPrefix = "/tarpon-";
constexpr std::string_view kFileName = "/rendezvous";
constexpr std::string_view kPlacedByFlags = "flags";
constexpr std::string_view kExample = "10.0.0.1:29500";

/// The variables of one launcher; those after `size` may be null or unset.
struct Launcher {
  std::string_view name;
  const char* rank;
  const char* size;
  const char* local_size;
  const char* job;
};

constexpr std::string_view kOpenMpi = "Open MPI", kSlurm = "Slurm", kPmi = "PMI";

constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE"},
    {kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_JOBID"},
    {"PMIx", "PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {kSlurm, "SLURM_PROCID", "SLURM_NTASKS", nullptr, "SLURM_JOB_ID"},
};

struct Range {
  std::int64_t from;
  std::int64_t to;
};

Result<std::int64_t> check(std::string_view name, std::int64_t value, Range allowed) {
  if (value < allowed.from || value > allowed.to) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{}={}: must be {} to {}", name, value, allowed.from, allowed.to));
  }
  return value;
}

Result<std::int64_t> parse(std::string_view name, const std::string& text, Range allowed) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return fail(Error::Code::invalid_argument, fmt::format("{}={}: not a number from {} to {}",
                                                           name, text, allowed.from, allowed.to));
  }
  return check(name, value, allowed);
}

std::optional<std::string> get(const Environment& environment, const char* name) {
  return name == nullptr ? std::nullopt : environment(name);
}

/// Parses a number that may be absent (-1).
Result<int> parse_optional(const Environment& environment, const char* name, Range allowed) {
  const auto text = get(environment, name);
  if (!text) return -1;
  const auto value = parse(name, *text, allowed);
  if (!value) return fail(value.error());
  return static_cast<int>(*value);
}

Result<JobPlace> make_place(std::string_view launcher, std::int64_t rank, std::int64_t size) {
  JobPlace place;
  place.launcher = launcher;
  place.rank = static_cast<Rank>(rank);
  place.world_size = static_cast<std::uint32_t>(size);
  return place;
}

Result<JobPlace> place_from_flags(const LaunchFlags& flags) {
  if (!flags.rank || !flags.world_size) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} needs {} too", flags.rank ? "--rank" : "--world-size",
                            flags.rank ? "--world-size" : "--rank"));
  }
  if (auto size = check("--world-size", *flags.world_size, {1, kMaxRanks}); !size) {
    return fail(size.error());
  }
  if (auto rank = check("--rank", *flags.rank, {0, *flags.world_size - 1}); !rank) {
    return fail(rank.error());
  }
  auto place = make_place(kPlacedByFlags, *flags.rank, *flags.world_size);
  place->named_by = flags.place_named_by;
  return place;
}

/// Whether Slurm may have started the ranks: srun sets the variables of PMI and PMIx too.
bool below_slurm(const Launcher& launcher) {
  return launcher.name == kPmi || launcher.name == "PMIx" || launcher.name == kSlurm;
}

/// Returns the variable with the world size. PMIx has none that every launcher sets; below Slurm,
/// Slurm's own are used.
const char* size_variable(const Launcher& launcher, const Environment& environment) {
  if (environment(launcher.size)) return launcher.size;
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
    if (below_slurm(launcher) && environment(name)) return name;
  }
  return nullptr;
}

/// SLURM_NTASKS_PER_NODE is an upper limit, so only the number of nodes proves that all are local.
Result<int> slurm_local_size(const Environment& environment, int size) {
  auto nodes = parse_optional(environment, "SLURM_STEP_NUM_NODES", {1, kMaxRanks});
  if (!nodes) return nodes;
  if (*nodes == 1) return size;
  auto per_node = parse_optional(environment, "SLURM_NTASKS_PER_NODE", {1, kMaxRanks});
  if (!per_node) return per_node;
  return *per_node < size ? *per_node : -1;
}

std::string job_id(const Launcher& launcher, const Environment& environment) {
  std::string id = get(environment, launcher.job).value_or("");
  if (launcher.name == kSlurm) {
    if (const auto step = environment("SLURM_STEP_ID")) id += "." + *step;
  }
  // The ranks of one host are siblings under their launcher's daemon.
  if (id.empty()) id = fmt::format("parent-{}", ::getppid());
  return id;
}

/// Whether srun has started this process: sbatch and salloc start none in a step.
bool is_step(const Environment& environment) {
  return environment("SLURM_STEP_ID") || environment("SLURM_STEP_NUM_TASKS") ||
         environment("SLURM_STEP_NUM_NODES");
}

/// How to give all ranks of the launcher TARPON_RENDEZVOUS; empty: the launcher passes the
/// environment on by itself, or it is not known.
std::string launcher_example(std::string_view launcher) {
  if (launcher == kOpenMpi) {
    return fmt::format(" (`mpirun -x TARPON_RENDEZVOUS={} ...`)", kExample);
  }
  if (launcher == kPmi) {
    return fmt::format(" (`mpirun -genv TARPON_RENDEZVOUS {} ...`)", kExample);
  }
  if (launcher == kSlurm) return fmt::format(" (`TARPON_RENDEZVOUS={} srun ...`)", kExample);
  return "";
}

Result<JobPlace> place_from(const Launcher& launcher, const char* size_name,
                            const Environment& environment) {
  const auto size = parse(size_name, *environment(size_name), {1, kMaxRanks});
  if (!size) return fail(size.error());
  const auto rank = parse(launcher.rank, *environment(launcher.rank), {0, *size - 1});
  if (!rank) return fail(rank.error());
  auto place = make_place(launcher.name, *rank, *size);
  auto local_size = parse_optional(environment, launcher.local_size, {1, *size});
  if (local_size && *local_size < 0 && below_slurm(launcher)) {
    local_size = slurm_local_size(environment, static_cast<int>(*size));
  }
  if (!local_size) return fail(local_size.error());
  place->local_size = *local_size;
  place->named_by = fmt::format("{} and {}", launcher.rank, size_name);
  place->job_id = job_id(launcher, environment);
  return place;
}

/// MASTER_ADDR with TARPON_PORT, else with MASTER_PORT + 1: torchrun's agent listens on
/// MASTER_PORT.
Result<std::optional<std::string>> master_address(const Environment& environment) {
  const auto host = environment("MASTER_ADDR");
  if (!host) return std::nullopt;
  std::int64_t port = 0;
  if (const auto own = environment("TARPON_PORT")) {
    const auto value = parse("TARPON_PORT", *own, {1, 65535});
    if (!value) return fail(value.error());
    port = *value;
  } else if (const auto master = environment("MASTER_PORT")) {
    const auto value = parse("MASTER_PORT", *master, {1, 65534});
    if (!value) return fail(value.error());
    port = *value + 1;
  } else {
    return std::nullopt;
  }
  return fmt::format("tcp://{}:{}", *host, port);
}

/// `origin`: "--rendezvous ", "TARPON_RENDEZVOUS=".
Result<std::string> explicit_address(std::string_view origin, const std::string& text) {
  const std::string address = with_scheme(text);
  if (address.starts_with("file://") && address.size() > 7) return address;
  if (address.starts_with("tcp://")) {
    const std::size_t colon = address.rfind(':');
    if (colon > 6) {
      const auto port =
          parse(fmt::format("{}{}: port", origin, text), address.substr(colon + 1), {1, 65535});
      if (!port) return fail(port.error());
      if (const auto wrong = rendezvous::wrong_host(address.substr(6, colon - 6))) {
        return fail(Error::Code::invalid_argument, fmt::format("{}{}: {}", origin, text, *wrong));
      }
      return address;
    }
  }
  return fail(Error::Code::invalid_argument,
              fmt::format("{}{}: write HOST:PORT, tcp://HOST:PORT or file://PATH", origin, text));
}

/// Returns the address given by the flag, else by TARPON_RENDEZVOUS, else by the launcher.
Result<std::optional<std::string>> given_rendezvous(const LaunchFlags& flags,
                                                    const Environment& environment) {
  if (flags.rendezvous) return explicit_address(flags.rendezvous_named_by, *flags.rendezvous);
  if (const auto own = environment("TARPON_RENDEZVOUS")) {
    return explicit_address("TARPON_RENDEZVOUS=", *own);
  }
  return master_address(environment);
}

/// Makes `text` safe as a file name: other characters become '_'.
std::string file_name(std::string_view text) {
  std::string out(text.substr(0, 128));
  for (char& c : out) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '.' || c == '_';
    if (!plain) c = '_';
  }
  return out;
}

std::string private_directory(const std::string& job, const Environment& environment) {
  return fmt::format("{}{}{}-{}", runtime_directory(environment), kDirectoryPrefix, ::geteuid(),
                     file_name(job));
}

/// The private directory of this user that `address` names; empty if it names another place.
std::string private_directory_of(const std::string& address) {
  if (!address.starts_with("file://") || !address.ends_with(kFileName)) return "";
  std::string directory = address.substr(7, address.size() - 7 - kFileName.size());
  const std::size_t slash = directory.rfind('/');
  if (slash == std::string::npos) return "";
  const std::string ours = fmt::format("{}{}-", kDirectoryPrefix, ::geteuid());
  return std::string_view(directory).substr(slash).starts_with(ours) ? directory : "";
}

}  // namespace

std::string with_scheme(const std::string& address) {
  const bool has = address.find("://") != std::string::npos || address.starts_with("tcp:") ||
                   address.starts_with("file:");
  return has ? address : "tcp://" + address;
}

std::string runtime_directory(const Environment& environment) {
  struct stat status {};
  const auto own = environment("XDG_RUNTIME_DIR");
  const bool usable = own && own->starts_with('/') && ::stat(own->c_str(), &status) == 0 &&
                      S_ISDIR(status.st_mode) && ::access(own->c_str(), W_OK) == 0;
  return usable ? *own : "/tmp";
}

Result<std::optional<JobPlace>> find_job_place(const LaunchFlags& flags,
                                               const Environment& environment) {
  std::optional<JobPlace> found;
  if (flags.rank || flags.world_size) {
    auto place = place_from_flags(flags);
    if (!place) return fail(place.error());
    found = std::move(*place);
  }
  for (const Launcher& launcher : kLaunchers) {
    if (found) break;
    const char* size = size_variable(launcher, environment);
    if (size == nullptr || !environment(launcher.rank)) continue;
    if (launcher.name == kSlurm && !is_step(environment)) {
      if (std::string why = outside_srun(environment); !why.empty()) {
        return fail(Error::Code::invalid_argument, std::move(why));
      }
    }
    auto place = place_from(launcher, size, environment);
    if (!place) return fail(place.error());
    found = std::move(*place);
  }
  if (!found) return found;
  auto address = given_rendezvous(flags, environment);
  if (!address) return fail(address.error());
  found->rendezvous = std::move(*address);
  found->rendezvous_remedy = flags.rendezvous_remedy;
  found->rendezvous_timeout = flags.rendezvous_timeout;
  return found;
}

std::string outside_srun(const Environment& environment) {
  const auto tasks = environment("SLURM_NTASKS");
  if (!tasks || *tasks == "1" || is_step(environment)) return "";
  const std::string count = printable(*tasks);
  return fmt::format(
      "SLURM_NTASKS={}: Slurm has reserved {} tasks, and srun has not started this process as one "
      "of "
      "them (SLURM_STEP_ID is not set): start the ranks with `srun --ntasks={} PROGRAM`",
      count, count, count);
}

Duration usual_rendezvous_timeout(const JobPlace& place) {
  const bool launched = place.launcher != kPlacedByFlags && !place.all_local();
  return launched ? 5min : RendezvousOptions().timeout;
}

std::string half_set_launcher(const Environment& environment) {
  if (std::string why = outside_srun(environment); !why.empty()) return why;
  for (const Launcher& launcher : kLaunchers) {
    const bool rank = environment(launcher.rank).has_value();
    if (rank == environment(launcher.size).has_value()) continue;
    const char* const set = rank ? launcher.rank : launcher.size;
    return fmt::format("{}={} is set, {} is not", set, printable(*environment(set)),
                       rank ? launcher.size : launcher.rank);
  }
  return "";
}

Result<std::string> find_rendezvous(const JobPlace& place, const Environment& environment) {
  if (place.rendezvous) return *place.rendezvous;
  if (place.world_size == 1) return std::string();
  if (place.all_local() && !place.job_id.empty()) {
    std::string address =
        fmt::format("file://{}{}", private_directory(place.job_id, environment), kFileName);
    if (auto made = make_rendezvous(address); !made) return fail(made.error());
    return address;
  }
  return fail(
      Error::Code::invalid_argument,
      fmt::format("nothing says where the ranks meet (rank and world size come from {}): set "
                  "TARPON_RENDEZVOUS=HOST:PORT{}, with an address of rank 0{}",
                  place.named_by, place.rendezvous_remedy, launcher_example(place.launcher)));
}

Result<void> make_rendezvous(const std::string& address) {
  const std::string path = private_directory_of(address);
  if (path.empty()) return {};
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail_system(errno, path +
                                  ": cannot create it (set XDG_RUNTIME_DIR to a directory that can "
                                  "be written, or TARPON_RENDEZVOUS)");
  }
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return fail_system(errno, path);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    return fail(
        Error::Code::permission,
        path + ": not a private directory of this user: remove it, or set TARPON_RENDEZVOUS");
  }
  return {};
}

void remove_rendezvous(const std::string& address) {
  const std::string directory = private_directory_of(address);
  if (!directory.empty()) ::rmdir(directory.c_str());
}

}  // namespace tarpon
