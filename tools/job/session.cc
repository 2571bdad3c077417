#include "tools/job/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "collectives/environment/environment_options.h"
#include "tools/cli/colour.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/files/report_output.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/units.h"
#include "tools/job/datapath_text.h"
#include "tools/job/guarded_run.h"
#include "tools/job/process_group.h"
#include "tools/job/rank_names.h"
#include "tools/namespaces/background_traffic.h"
#include "tools/namespaces/testbed.h"
#include "tools/system/capabilities.h"
#include "tools/version.h"
#include "transport/clock.h"
#include "transport/integrity.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

// Of JobPlace::launcher.
constexpr std::string_view kPlacedByFlags = "flags", kLocal = "--local-ranks";

/// Prints refusals as errors of this process's rank, and what it waits for. Ranks of a launcher
/// print into one place, where rank 0 names the missing ones; of local ranks the parent notices the
/// end.
class PrintedRendezvous : public RendezvousObserver {
 public:
  explicit PrintedRendezvous(const LaunchPlace& place) : place_(place) {}
  void on_refusal(const std::string& line) override {
    place_.voice.error("rendezvous: refused: " + line);
  }
  void on_wait(const std::string& line, bool known_to_rank_0) override {
    const bool by_hand = place_.launcher == kPlacedByFlags;
    const bool shown = place_.launcher != kLocal && (by_hand || !known_to_rank_0);
    if (shown) place_.voice.note(line);
    if (!shown) place_.log.write(DebugLevel::info, "NET", line);
  }

 private:
  const LaunchPlace place_;
};

constexpr std::uint16_t kTestbedPort = 29500;

// After one local rank has failed: long enough for the others to tell what they saw.
constexpr Duration kGrace = 2s;

// After the SIGTERM that follows: the command has failed, and the user waits for its end.
constexpr Duration kKillAfter = 1s;

// After a signal, for rank 0: long enough to write a large report to a slow disk.
constexpr Duration kLastWords = 6s;

/// A private directory that is removed with its owner, or earlier: its name tells the ranks to
/// remove it once they have joined (remove_rendezvous()), so that from then on not even SIGKILL
/// leaves it behind.
class TemporaryDirectory {
 public:
  static Result<TemporaryDirectory> make() {
    const std::string name = fmt::format("tarpon-{}-local-XXXXXX", geteuid());
    std::error_code error;
    std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    if (error) parent = process_environment()("TMPDIR").value_or("/tmp");
    std::string path = (parent / name).string();
    if (!error && mkdtemp(path.data()) == nullptr) error.assign(errno, std::system_category());
    if (!error) return TemporaryDirectory(path);
    return fail(
        Error::Code::io,
        fmt::format("cannot create {} for the ranks to meet ({}): set TMPDIR to a directory "
                    "that can be written",
                    path, error.message()));
  }
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;  // a directory that is gone already is gone
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// Where local ranks meet: a directory on loopback, or the testbed with what runs on it.
struct LocalNetwork {
  std::optional<TemporaryDirectory> directory;
  std::optional<Testbed> testbed;
  std::optional<BackgroundTraffic> background;

  static Result<LocalNetwork> make(const JobOptions& options) {
    LocalNetwork network;
    if (options.network == Network::loopback) {
      auto made = TemporaryDirectory::make();
      if (!made) return fail(made.error());
      network.directory.emplace(std::move(*made));
      return network;
    }
    TestbedOptions bed = options.testbed;
    bed.ranks = options.local_ranks;
    if (bed.loss) bed.loss->seed = options.seed;
    auto made = Testbed::create(bed);
    if (!made) return fail(made.error());
    network.testbed.emplace(std::move(*made));
    if (options.background > 0) {
      auto started = BackgroundTraffic::start(*network.testbed, options.background);
      if (!started) return fail(started.error());
      network.background.emplace(std::move(*started));
    }
    return network;
  }

  /// Moves this process to the network of the rank, and sets the rank's rendezvous in `place`.
  Result<void> enter(LaunchPlace& place) const {
    if (!testbed) {
      place.rendezvous = "file://" + directory->path() + "/rendezvous";
      place.local_size = static_cast<int>(place.world_size);
      return {};
    }
    place.interface = testbed->interface();
    place.rendezvous = fmt::format("tcp://{}:{}", testbed->address(0), kTestbedPort);
    return testbed->enter(place.rank);
  }
};

/// Prints what the queues of links have dropped, if the links have a rate.
void report_queues(const Testbed& testbed, std::FILE* text) {
  const auto queues = testbed.queues();
  if (!queues) return;
  for (const auto& [name, queue] :
       {std::pair("links to ranks", queues->to_hosts), {"links from ranks", queues->from_hosts}}) {
    const std::uint64_t all = queue.packets + queue.dropped;
    if (all == 0) continue;
    fmt::print(
        text, "# {:<20} : carried {} packets ({:.1f} MB); {:.2f} % more had no room in the queue\n",
        name, queue.packets, static_cast<double>(queue.bytes) * 1e-6,
        100 * static_cast<double>(queue.dropped) / static_cast<double>(all));
  }
}

/// Prints what the bridge has lost, if it was told to lose anything.
void report(const Testbed& testbed, std::FILE* text) {
  TestbedLossCounters sum;
  for (std::uint32_t host = 0; host < testbed.hosts(); ++host) {
    const auto counters = testbed.loss_counters(host);
    if (!counters) return;
    sum.passed += counters->passed;
    sum.dropped += counters->dropped;
    sum.limited += counters->limited;
    sum.policed += counters->policed;
  }
  fmt::print(text,
             "# bridge               : of {} packets {} lost, {} above their flow's limit, "
             "{} policed\n",
             sum.passed + sum.dropped + sum.limited, sum.dropped, sum.limited, sum.policed);
}

/// Prints what the background flows have carried. Returns the exit code.
int report(const BackgroundTraffic& background, const JobOptions& options) {
  const auto rate = background.rate();
  if (!rate) return report(rate.error());
  fmt::print(options.text, "# background           : {} TCP flows carried {:.2f} Gb/s meanwhile\n",
             options.background, *rate * 1e-9);
  return 0;
}

/// Adds the remedy "use --net loopback" to an error of missing permission.
Error or_loopback(Error error) {
  if (error.code == Error::Code::permission) error.message += ", or use --net loopback";
  return error;
}

/// A foreign program may be in the middle of a line on the same terminal, so nothing is erased
/// then.
void write_error_line(std::string_view line, bool is_error, bool foreign) {
  if (!foreign) erase_progress(STDERR_FILENO);
  const Colour colour(STDERR_FILENO, process_environment());
  const std::string text = is_error ? colour.failure(line) : std::string(line);
  fmt::print(stderr, "{}\n", text);
}

/// The secret that the parent of local ranks reads from the file, or makes where packets are to be
/// keyed and there is none. Null: the job has none.
Result<std::shared_ptr<const JobSecret>> secret_of_local_ranks(const JobOptions& options) {
  if (options.secret_file) return JobSecret::read_file(*options.secret_file);
  auto found = read_secret(process_environment());
  if (!found || *found != nullptr) return found;
  const auto settings = read_settings(process_environment());
  if (!settings) return fail(settings.error());
  const auto integrity = options.integrity ? options.integrity : settings->integrity;
  return integrity && needs_secret(*integrity) ? JobSecret::random() : found;
}

int run_ranks(const JobOptions& options, const std::function<int(const LaunchPlace&)>& body,
              bool foreign) {
  const auto network = LocalNetwork::make(options);
  if (!network) return report(foreign ? network.error() : or_loopback(network.error()));
  const auto secret = secret_of_local_ranks(options);
  if (!secret) return report(secret.error());
  const FileDescriptor terminal(dup(STDERR_FILENO));  // the ranks' own one is captured
  const auto rank_body = [&](Rank rank) {
    LaunchPlace place;
    place.rank = rank;
    place.world_size = options.local_ranks;
    place.launcher = kLocal;
    place.secret = *secret;
    place.progress_fd = terminal.get();
    auto log = DebugLog::open(process_environment());
    if (!log) return report(log.error());
    place.log = std::move(*log);
    if (auto entered = network->enter(place); !entered) return report(entered.error());
    return body(place);
  };
  ProcessGroupOptions group;
  group.grace = kGrace;
  if (!foreign) {
    group.kill_after = kKillAfter;
    group.last_words = kLastWords;
  }
  group.on_error_line = [foreign](std::string_view line, bool is_error) {
    write_error_line(line, is_error, foreign);
  };
  if (network->testbed) {
    // To read counters in the namespaces; to end ranks that have become other users.
    group.started = [] { return keep_capabilities({CAP_SYS_ADMIN, CAP_KILL}); };
  }
  const auto ended = run_process_group(options.local_ranks, rank_body, group);
  if (!foreign) erase_progress(STDERR_FILENO);  // of a rank that was killed
  if (!ended) return report(ended.error());
  if (ended->ok()) {
    if (network->testbed) {
      // What a foreign program writes may be read by another one.
      report_queues(*network->testbed, foreign ? stderr : options.text);
      report(*network->testbed, options.text);
    }
    return network->background ? report(*network->background, options) : 0;
  }
  // A rank of ours that exits with a code has said why.
  const bool killed = ended->first_failure && ended->ranks[*ended->first_failure].exit_code < 0;
  const bool untold =
      foreign && ended->first_failure && ended->ranks[*ended->first_failure].exit_code != kNotRun;
  if (killed || untold || ended->interrupted_by != 0) {
    Voice().error(ended->summary());
  }
  if (ended->interrupted_by != 0) return 128 + ended->interrupted_by;
  // All ranks halt, or find the same wrong usage, together, so they exit with the same code.
  const int code = ended->ranks[*ended->first_failure].exit_code;
  return !foreign && (code == kUsage || code == kHalted) ? code : kFailed;
}

int run_local(const JobOptions& options, const std::function<int(const LaunchPlace&)>& body,
              bool foreign) {
  std::function<Result<void>()> started;
  if (options.network == Network::veth) started = [] { return keep_capabilities({CAP_KILL}); };
  const auto code = run_guarded([&] { return run_ranks(options, body, foreign); }, started);
  return code ? *code : report(code.error());
}

/// Logs what the ranks have chosen, and warns of what deserves a look.
void tell(const CommunicatorOptions& options, const LaunchPlace& place,
          const std::vector<RankInfo>& ranks) {
  const DebugLog& log = place.log;
  const Voice& voice = place.voice;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& info = ranks[rank];
    log.write(DebugLevel::info, "NET",
              fmt::format("rank {} at {}:{} on {}, {} ({}), MTU {}", rank, info.address, info.port,
                          info.interface, info.datapath, info.datapath_reason, info.mtu));
    if (info.mtu != ranks[0].mtu) {
      log.write(DebugLevel::warn, "NET",
                fmt::format("MTU {} on rank {} and {} on rank 0: packets take the smallest",
                            info.mtu, rank, ranks[0].mtu));
    }
  }
  const RankInfo& mine = ranks[options.rendezvous.rank];
  // The data path is not the one that was asked for, or it is the last resort.
  const bool other = options.datapath == Datapath::automatic
                         ? mine.datapath == name(Datapath::mmsg)
                         : mine.datapath != name(options.datapath);
  if (other) {
    log.write(DebugLevel::warn, "NET",
              fmt::format("{} in place of {}: {}", mine.datapath, name(options.datapath),
                          mine.datapath_reason));
  }
  if (options.rendezvous.secret == nullptr && options.rendezvous.rank == 0) {
    if (const std::string exposed = exposed_text(ranks); !exposed.empty()) voice.note(exposed);
  }
  if (options.faults.any()) {
    log.write(DebugLevel::warn, "NET", "faults are injected: times and losses are theirs");
  }
}

/// The environment; where the rank `has` a secret, without the variables that name one.
Environment without_secret(Environment environment, bool has) {
  if (!has) return environment;
  return [environment = std::move(environment)](const char* name) {
    const bool hidden = std::string_view(name).starts_with("TARPON_SECRET_");
    return hidden ? std::nullopt : environment(name);
  };
}

}  // namespace

Result<CommunicatorOptions> session_options(const JobOptions& options, const LaunchPlace& place,
                                            const std::string& agreed, std::string* reason) {
  const DebugLog& log = place.log;
  const bool has_secret = place.secret != nullptr || options.secret_file;
  const Environment environment = without_secret(log.watch(process_environment()), has_secret);
  log.write(DebugLevel::version, "INIT", fmt::format("tarpon {} ({})", kVersion, kGitCommit));
  InterfaceRequest wish{.name = options.interface ? options.interface : place.interface,
                        .named_by = "--interface"};
  // It lives as long as the process, because communicators made by shrink() keep it.
  static PrintedRendezvous printed(place);
  JobPlace where = place;
  where.rendezvous_timeout = options.rendezvous_bound(place, environment);
  where.observer = &printed;
  auto found = find_options(where, std::move(wish), environment);
  if (!found) return fail(found.error());
  if (!options.interface && place.interface) {
    found->interface_reason = "the interface of the rank's namespace";
  }
  if (reason != nullptr) *reason = found->interface_reason;
  CommunicatorOptions result = std::move(found->options);
  const std::string& rendezvous = result.rendezvous.address;
  log.write(
      DebugLevel::info, "NET",
      fmt::format("rank {} of {} by {}, rendezvous {}, interface {} ({}): {}", place.rank,
                  place.world_size, place.launcher, rendezvous.empty() ? "not needed" : rendezvous,
                  result.interface, result.address, found->interface_reason));
  result.rendezvous.agreed =
      fmt::format("deadline={}\n{}", format_duration(options.deadline), agreed);
  std::string line = result.rendezvous.agreed;
  std::replace(line.begin(), line.end(), '\n', ' ');
  log.write(DebugLevel::info, "INIT", "alike on all ranks: " + line);
  result.learn_shares = false;  // --shares says it, for each call
  if (options.datapath) result.datapath = *options.datapath;
  result.gso_segments = options.gso_segments;
  result.flows = options.flows;
  if (options.lanes) result.lanes = *options.lanes;
  if (options.multicast) result.multicast = true;
  if (options.hosts) result.hosts = *options.hosts;
  if (options.ports != PortRange()) result.ports = options.ports;
  if (options.integrity) result.integrity = *options.integrity;
  if (place.secret != nullptr) {
    result.rendezvous.secret = place.secret;
  } else if (options.secret_file) {
    auto secret = JobSecret::read_file(*options.secret_file);
    if (!secret) return fail(secret.error());
    result.rendezvous.secret = *std::move(secret);
  }
  if (result.rendezvous.secret != nullptr && options.integrity &&
      !needs_secret(*options.integrity)) {
    return fail(
        Error::Code::invalid_argument,
        fmt::format("--integrity {}: a job with a secret has keyed or sealed packets: leave "
                    "out this option, or the secret (--secret-file, TARPON_SECRET_FILE)",
                    name(*options.integrity)));
  }
  result.busy_poll = options.busy_poll;
  result.mechanisms = options.mechanisms;
  if (!options.loss_budgets.empty()) result.loss_budgets = options.loss_budgets;
  result.max_bytes_per_second = static_cast<double>(options.max_rate) / 8;
  result.retain_bytes = options.retain_bytes;
  result.silent_after = options.silent_after;
  result.dead_after = options.dead_after;
  result.faults = options.faults;
  if (!options.flight.empty()) result.flight.directory = options.flight;
  result.flight.signals = FlightSignals::all;
  result.faults.seed = options.seed;
  return result;
}

Result<Connection> connect_session(const CommunicatorOptions& options, const LaunchPlace& place) {
  auto connection = connect_ranks(options, SlotSizing::by_path_or_interface);
  if (connection) tell(options, place, connection->ranks);
  return connection;
}

Result<Session> open_session(const JobOptions& options, const LaunchPlace& place,
                             const std::string& agreed) {
  Session session;
  session.place = place;
  session.log = place.log;
  auto communicator_options = session_options(options, place, agreed, &session.interface_reason);
  if (!communicator_options) return fail(communicator_options.error());
  session.flight = communicator_options->flight.directory;
  const ProcessHoldings before = ProcessHoldings::read();
  const Time start = monotonic_now();
  auto communicator = Communicator::connect(*communicator_options);
  if (!communicator) return fail(communicator.error());
  session.cost = ConnectCost::since(before, start);
  place.log.write(DebugLevel::info, "INIT", session.cost.text());
  session.communicator = std::move(*communicator);
  tell(*communicator_options, place, session.communicator->ranks());
  const std::string& shrunk = session.communicator->shrunk_slots();
  if (!shrunk.empty()) place.log.write(DebugLevel::warn, "NET", shrunk);
  const std::string multicast = session.communicator->multicast();
  if (!multicast.empty()) place.log.write(DebugLevel::info, "NET", "multicast " + multicast);
  const std::string& hosts = session.communicator->hosts();
  if (!hosts.empty()) place.log.write(DebugLevel::info, "NET", "hosts: " + hosts);
  return session;
}

Interruption watch_connecting(const JobOptions& options, const LaunchPlace& place,
                              const std::string& json) {
  return Interruption::of_keyboard([&options, &place, &json] {
    if (options.local_ranks == 0) {
      place.voice.error(
          fmt::format("interrupted before all {} were connected", rank_count(place.world_size)));
    }
    if (place.rank != 0) return;
    nlohmann::json report = json_report(report_config(), nlohmann::json::array());
    report["interrupted"] = true;
    report["partial"] = nullptr;
    if (auto saved = write_json(json, report); !saved) place.voice.error(saved.error().message);
  });
}

std::string carrier(const JobOptions& options, const Session& session) {
  if (options.local_ranks > 0 && options.network == Network::veth) {
    return "network namespaces (veth)";
  }
  const RankInfo& first = session.communicator->ranks()[0];
  return first.address.starts_with("127.") ? "loopback" : "interface " + first.interface;
}

int run_job(const JobOptions& options, const std::function<int(const LaunchPlace&)>& body,
            bool foreign) {
  if (options.local_ranks > 0) return run_local(options, body, foreign);
  auto log = DebugLog::open(process_environment());
  const Voice voice = Voice::of_launcher(process_environment());
  if (!log) return report(log.error(), voice);
  LaunchFlags flags = options.place;
  flags.rendezvous_remedy = " or give --rendezvous HOST:PORT";
  auto place = find_job_place(flags, log->watch(process_environment()));
  if (!place) return report(place.error(), voice);
  if (!*place) {
    const std::string half = half_set_launcher(process_environment());
    Voice().error(
        fmt::format("which rank is this? {}{}ive --local-ranks P, or --rank R --world-size P "
                    "--rendezvous tcp://HOST:PORT, or start it under mpirun, srun or torchrun",
                    half, half.empty() ? "G" : ": g"));
    return 2;
  }
  LaunchPlace launched{std::move(**place)};
  launched.log = std::move(*log);
  const bool mixed = launched.launcher != kPlacedByFlags && launched.world_size > 1;
  if (mixed) launched.voice = Voice(launched.rank);
  return body(launched);
}

}  // namespace tarpon
