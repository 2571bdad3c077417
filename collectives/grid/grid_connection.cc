#include "collectives/grid/grid_connection.h"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "collectives/communicator.h"
#include "collectives/driver/connect.h"
#include "collectives/driver/offer.h"
#include "collectives/driver/own_network.h"
#include "collectives/grid/global_names.h"
#include "collectives/grid/grid_messages.h"
#include "collectives/grid/host_gather.h"
#include "collectives/membership/socket_network.h"
#include "collectives/rank_list.h"
#include "collectives/report_text.h"
#include "transport/clock.h"

namespace tarpon::grid {
namespace {

static_assert(Communicator::kMostRanks == GridLayout::kMost * GridLayout::kMost);

constexpr const char* kLoopback = "lo";
constexpr const char* kLoopbackAddress = "127.0.0.1";

/// The errors of all ranks in one; nullopt: there is none.
std::optional<Error> joined_error(const std::vector<Told>& told) {
  std::vector<std::string> texts;
  std::optional<Error::Code> code;  // of the lowest rank that has an error
  for (const Told& one : told) {
    texts.push_back(one.error ? one.error->message : "");
    if (one.error && !code) code = one.error->code;
  }
  if (!code) return std::nullopt;
  return Error::make(*code, errors_text(texts));
}

/// The time in which the others are told of a step that fails at its deadline.
Time before(Time deadline) {
  const Time now = monotonic_now();
  return now + (deadline - std::min(now, deadline)) / 4 * 3;
}

/// Forms the grid of one rank, step by step. In each step every rank tells rank 0 a text or an
/// error; rank 0 decides, and tells all.
class Forming {
 public:
  Forming(CommunicatorOptions options, std::unique_ptr<ControlChannel> control, Time deadline)
      : options_(std::move(options)), control_(std::move(control)), deadline_(deadline) {}

  Result<GridConnection> run(const HostKey& key, const std::function<void()>& watcher) {
    if (auto found = find_layout(key); !found) return fail(found.error());
    if (auto met = open_listeners(); !met) return fail(met.error());
    const PartOfGrid host{.watcher = watcher};
    if (auto made = connect(parts_->host_job, host_options(), host, parts_->host_ranks()); !made) {
      return fail(made.error());
    }
    auto rail = part_of_rail();
    if (!rail) return fail(rail.error());
    rail->watcher = watcher;
    if (auto made = connect(parts_->rail_job, rail_options(), *rail, parts_->rail_ranks()); !made) {
      return fail(made.error());
    }
    parts_->host = parts_->host_job.get();
    parts_->rail = parts_->rail_job.get();
    auto ranks = gather_ranks();
    if (!ranks) return fail(ranks.error());
    return GridConnection{std::move(control_), std::move(parts_), *std::move(ranks)};
  }

 private:
  Rank self() const { return control_->rank(); }

  /// `decide(texts)` runs on rank 0 if no rank has an error. Returns its result on all ranks.
  template <typename Decide>
  Result<std::string> settle(const Told& mine, Decide decide) {
    std::vector<Rank> missing;
    auto bytes = control_->gather(grid::encode(mine), before(deadline_), missing);
    if (!bytes) return fail(bytes.error());
    Told verdict;
    if (self() == 0) verdict = decided(*bytes, missing, decide);
    auto heard = control_->broadcast(grid::encode(verdict), deadline_);
    if (!heard) return fail(heard.error());
    Told all = decode_told(*heard);
    if (all.error) return fail(*std::move(all.error));
    if (mine.error) return fail(*mine.error);  // whatever rank 0 says
    return std::move(all.text);
  }

  template <typename Decide>
  static Told decided(const std::vector<std::string>& bytes, const std::vector<Rank>& missing,
                      Decide decide) {
    std::vector<Told> told;
    told.reserve(bytes.size());
    for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
      const bool lacks = std::find(missing.begin(), missing.end(), rank) != missing.end();
      told.push_back(lacks ? Told() : decode_told(bytes[rank]));
    }
    // A rank with an error may be why others are missing.
    if (auto error = joined_error(told)) return {.error = std::move(error)};
    if (!missing.empty()) {
      return {.error = Error::make(Error::Code::unavailable,
                                   fmt::format("{} ended, or did not answer rank 0 by the deadline",
                                               rendezvous::rank_list(missing)))};
    }
    std::vector<std::string> texts;
    for (Told& one : told) texts.push_back(std::move(one.text));
    Result<std::string> text = decide(texts);
    if (!text) return {.error = text.error()};
    return {.text = *std::move(text)};
  }

  /// Tells where this rank runs.
  Result<void> find_layout(const HostKey& key) {
    Told mine{.text = grid::encode(RankPlace{key ? key(self()) : network_name(), host_name()})};
    mine.error = against_grid();
    auto bytes = settle(mine, [](const std::vector<std::string>& texts) -> Result<std::string> {
      std::vector<std::string> hosts, names;
      for (const std::string& text : texts) {
        RankPlace place = decode_place(text);
        hosts.push_back(std::move(place.key));
        names.push_back(std::move(place.name));
      }
      auto layout = GridLayout::make(hosts, names);
      if (!layout) return fail(layout.error());
      GridPlan plan{*std::move(layout), {}};
      for (std::uint32_t host = 0; host < plan.layout.hosts(); ++host) {
        plan.host_names.push_back(names[plan.layout.host(host)[0]]);
      }
      return grid::encode(plan);
    });
    if (!bytes) return fail(bytes.error());
    auto plan = decode_plan(*bytes, control_->world_size());
    if (!plan) return fail(plan.error());
    host_names_ = std::move(plan->host_names);
    parts_ = std::make_unique<LiveParts>(
        LiveParts{{.layout = std::move(plan->layout), .self = self()}, nullptr, nullptr});
    return {};
  }

  /// What this rank's options ask for, and a grid has not.
  std::optional<Error> against_grid() const {
    const auto refused = [&](const char* what) {
      return Error::make(
          Error::Code::invalid_argument,
          fmt::format("a job of more than {} ranks needs {}", GridLayout::kMost, what));
    };
    if (!options_.hosts) {
      return refused(
          "memory that the ranks of a host share: leave out TARPON_HOSTS=off (--hosts off)");
    }
    if (!options_.progress_thread) return refused("the progress thread: leave it on");
    if (options_.learn_shares) return refused("even shares: leave out TARPON_SHARES=auto");
    return std::nullopt;
  }

  /// The first rank of each host, and of each rail, tells where its communicator meets.
  Result<void> open_listeners() {
    const GridLayout& layout = parts_->layout;
    Told mine;
    const auto open = [&](const std::string& address, std::shared_ptr<FileDescriptor>& listener) {
      auto door = mesh::open_door(address, options_.ports);
      if (!door) {
        mine.error = door.error();
        if (address == kLoopbackAddress) {
          mine.error->message += "; is the loopback interface up? (ip link set lo up)";
        }
        return;
      }
      listener = std::make_shared<FileDescriptor>(std::move(door->listener));
      mine.text += fmt::format("tcp://{}:{}\n", address, door->port);
    };
    if (parts_->own_place() == 0) open(kLoopbackAddress, host_listener_);
    if (parts_->own_host() == 0) {
      CommunicatorOptions found = options_;
      if (auto filled = rendezvous::fill_network(found, control_->local_address()); filled) {
        open(found.address, rail_listener_);
      } else {
        mine.error = filled.error();
      }
    }
    auto places = settle(mine, [&](const std::vector<std::string>& texts) -> Result<std::string> {
      GridAddresses addresses;
      for (std::uint32_t host = 0; host < layout.hosts(); ++host) {
        addresses.hosts.push_back(first_line(texts[layout.host(host)[0]]));
      }
      for (const Rank rank : layout.host(0)) addresses.rails.push_back(last_line(texts[rank]));
      return grid::encode(addresses);
    });
    if (!places) return fail(places.error());
    auto addresses = decode_addresses(*places, layout);
    if (!addresses) return fail(addresses.error());
    addresses_ = *std::move(addresses);
    return {};
  }

  Result<void> connect(std::unique_ptr<JobCommunicator>& place, const CommunicatorOptions& options,
                       const PartOfGrid& part, const std::vector<Rank>& ranks) {
    Told mine;
    auto made = JobCommunicator::connect(options, part);
    if (!made) {
      mine.error = Error::make(made.error().code, global_text(made.error().message, ranks));
    } else if ((*made)->hosts().starts_with("off: ") && options.hosts) {
      mine.error = Error::make(
          Error::Code::unavailable,
          fmt::format("a job of more than {} ranks needs memory that the ranks of a host share: {}",
                      GridLayout::kMost, global_text((*made)->hosts().substr(5), ranks)));
    } else {
      (*made)->control().close();
      place = *std::move(made);
    }
    auto all = settle(mine, [](const auto&) -> Result<std::string> { return std::string(); });
    if (!all) return fail(all.error());
    return {};
  }

  /// The ranks of a host that use the same interface share its link.
  Result<PartOfGrid> part_of_rail() {
    using Name = std::array<char, IFNAMSIZ>;
    Name own{};
    CommunicatorOptions found = options_;
    // Where this fails, connecting the rail fails too, and says so.
    if (rendezvous::fill_network(found, control_->local_address())) {
      found.interface.copy(own.data(), own.size() - 1);
    }
    const auto names = gather_in_host(*parts_, own, before(deadline_) - monotonic_now());
    Told mine;
    if (!names) mine.error = names.error();
    auto all = settle(mine, [](const auto&) -> Result<std::string> { return std::string(); });
    if (!all) return fail(all.error());
    PartOfGrid part;
    for (std::uint32_t place = 0; place < names->size(); ++place) {
      if ((*names)[place] != own) continue;
      if (place < parts_->own_place()) ++part.place;
      ++part.siblings;
    }
    return part;
  }

  CommunicatorOptions part_options(const std::string& name, const std::string& address,
                                   const std::shared_ptr<FileDescriptor>& listener) const {
    CommunicatorOptions options = options_;
    options.rendezvous.address = address;
    options.rendezvous.listener = listener;
    options.rendezvous.observer = nullptr;  // it has numbers of the job
    options.rendezvous.timeout = before(deadline_) - monotonic_now();
    // A rank of another job, or of another part, is refused.
    options.rendezvous.agreed += fmt::format("\npart={} of {:x}", name, control_->public_id());
    return options;
  }

  /// Without what concerns the network: ranks of a host meet on its loopback interface, and leave
  /// the queues of its link to the rails.
  CommunicatorOptions host_options() const {
    const std::uint32_t host = parts_->own_host();
    CommunicatorOptions options =
        part_options(fmt::format("host {}", host), addresses_.hosts[host], host_listener_);
    options.rendezvous.rank = static_cast<Rank>(parts_->own_place());
    options.rendezvous.world_size = parts_->layout.places();
    options.interface = kLoopback;
    options.address = kLoopbackAddress;
    options.mtu = 0;
    options.driver.clear();
    options.datapath = Datapath::automatic;
    options.flows = 1;
    options.lanes = 1;
    options.multicast = false;
    options.max_bytes_per_second = 0;
    options.faults = {};
    return options;
  }

  CommunicatorOptions rail_options() const {
    const std::uint32_t place = parts_->own_place();
    CommunicatorOptions options =
        part_options(fmt::format("rail {}", place), addresses_.rails[place], rail_listener_);
    options.rendezvous.rank = static_cast<Rank>(parts_->own_host());
    options.rendezvous.world_size = parts_->layout.hosts();
    options.hosts = false;  // its ranks are on different hosts
    return options;
  }

  std::vector<RankInfo> known_ranks() const {
    std::vector<RankInfo> ranks(parts_->layout.world_size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      ranks[rank].host = host_names_[parts_->layout.host_of(static_cast<Rank>(rank))];
    }
    const auto take = [&](const std::vector<RankInfo>& known, const std::vector<Rank>& numbers) {
      for (std::size_t i = 0; i < known.size(); ++i) ranks[numbers[i]] = known[i];
    };
    take(parts_->host_job->ranks(), parts_->host_ranks());
    take(parts_->rail_job->ranks(), parts_->rail_ranks());
    return ranks;
  }

  /// Only rank 0, which reports for all, hears of all ranks: to tell each rank of each other one
  /// would be much data.
  Result<std::vector<RankInfo>> gather_ranks() {
    std::vector<RankInfo> ranks = known_ranks();
    std::vector<Rank> missing;
    auto texts = control_->gather(tarpon::encode(ranks[self()]), deadline_, missing);
    if (!texts) return fail(texts.error());
    for (std::size_t rank = 0; rank < texts->size(); ++rank) {
      if (auto info = decode_rank_info((*texts)[rank])) ranks[rank] = *std::move(info);
    }
    return ranks;
  }

  static std::string first_line(const std::string& text) {
    const auto all = lines(text);
    return all.empty() ? "" : all.front();
  }
  static std::string last_line(const std::string& text) {
    const auto all = lines(text);
    return all.empty() ? "" : all.back();
  }

  const CommunicatorOptions options_;
  std::unique_ptr<ControlChannel> control_;
  const Time deadline_;
  std::unique_ptr<LiveParts> parts_;
  std::vector<std::string> host_names_;
  std::shared_ptr<FileDescriptor> host_listener_, rail_listener_;
  GridAddresses addresses_;
};

}  // namespace

Result<GridConnection> connect_grid(const CommunicatorOptions& given, const HostKey& key,
                                    const std::function<void()>& watcher) {
  CommunicatorOptions options = given;
  const Time deadline = after(monotonic_now(), options.rendezvous.timeout);
  auto control = meet_ranks(options, Communicator::kMostRanks);
  if (!control) return fail(control.error());
  return Forming(std::move(options), *std::move(control), deadline).run(key, watcher);
}

}  // namespace tarpon::grid
