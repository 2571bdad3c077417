#include "tools/check/check_command.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>

#include "tools/check/pair_matrix.h"
#include "tools/check/probe.h"
#include "tools/cli/colour.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/files/report_output.h"
#include "tools/cli/wrapped_text.h"
#include "tools/collective/timed_calls.h"
#include "tools/job/datapath_text.h"
#include "tools/job/host_trouble.h"
#include "tools/job/joint_outcome.h"
#include "tools/job/rank_names.h"
#include "tools/job/session.h"

namespace tarpon {
namespace {

constexpr const char* kHowMeasured =
    "each rank sends to one other at a time, so rates do not add up; a burst finds what a pair "
    "carries, then a flood is paced at that rate";

/// Colour of failed pairs, which make the run fail.
Colour failure_colour(std::FILE* text) {
  return {::fileno(text), process_environment()};
}

void print_matrix(std::FILE* text, const std::vector<PairProbe>& pairs, std::uint32_t world,
                  const char* title, const std::function<std::string(const PairProbe&)>& cell) {
  fmt::print(text, "# {}\n{}", title, pair_matrix(pairs, world, cell, failure_colour(text)));
}

void print(std::FILE* text, const std::vector<PairProbe>& pairs, const Connection& connection) {
  const std::vector<RankInfo>& ranks = connection.ranks;
  const auto world = static_cast<std::uint32_t>(ranks.size());
  fmt::print(text, "# {}, {}, full-size packets, slots of {} B\n", rank_count(world),
             mtu_text(ranks), connection.agreed.slot_bytes);
  fmt::print(text, "{}\n", wrapped("# datapath: " + datapath_text(ranks)));
  fmt::print(text, "{}{}{}{}", hosts_line(connection.hosts),
             secret_line(connection.options.integrity), shrunk_line(connection.shrunk_slots),
             small_buffers_line(ranks));
  print_matrix(text, pairs, world, "reachable (a full-size packet and its reply pass)",
               [](const PairProbe& pair) { return std::string(pair.works() ? "yes" : "NO"); });
  print_matrix(text, pairs, world, "round-trip time, median (us)", [](const PairProbe& pair) {
    return pair.works() ? fmt::format("{:.1f}", pair.rtt_us) : "-";
  });
  print_matrix(text, pairs, world, "probes lost on the way (%)",
               [](const PairProbe& pair) { return fmt::format("{:.1f}", pair.loss() * 100); });
  print_matrix(text, pairs, world, "flood, all ranks sending: lost on the way (%)",
               [](const PairProbe& pair) {
                 return pair.flooded() ? fmt::format("{:.2f}", pair.flood_loss() * 100) : "-";
               });
  print_matrix(text, pairs, world, "flood, all ranks sending: received (Gb/s)",
               [](const PairProbe& pair) {
                 return pair.flooded() ? fmt::format("{:.2f}", pair.rate_gbps) : "-";
               });
  fmt::print(text, "{}\n", wrapped(std::string("# ") + kHowMeasured));
  for (const PairProbe& pair : pairs) {
    if (!pair.cut_to_fragments()) continue;
    const RankInfo& from = ranks[pair.from];
    fmt::print(text, "{}\n",
               wrapped("# warning: " + fragments_warning(pair, from.interface, from.mtu)));
  }
  int failing = 0;
  for (const PairProbe& pair : pairs) {
    if (pair.good()) continue;
    ++failing;
    const RankInfo& to = ranks[pair.to];
    const std::string line =
        fmt::format("FAILING: rank {} ({}, {}) -> rank {} ({}, {}): {}", pair.from,
                    ranks[pair.from].host, ranks[pair.from].address, pair.to, to.host, to.address,
                    likely_cause(pair, {to.mtu, ranks[pair.from].port, to.port}));
    fmt::print(text, "{}\n", failure_colour(text).failure(wrapped(line, "  ")));
  }
  if (failing == 0) fmt::print(text, "# all {} pairs work\n", pairs.size());
  std::fflush(text);
}

nlohmann::json to_json(const std::vector<PairProbe>& pairs, const Connection& connection,
                       const CheckOptions& options) {
  nlohmann::json config = report_config();
  config.update({{"probes", options.probes},
                 {"world_size", connection.ranks.size()},
                 {"hosts", connection.hosts},
                 {"ranks", ranks_json(connection.ranks)}});
  nlohmann::json json = nlohmann::json::array();
  for (const PairProbe& pair : pairs) {
    json.push_back({{"from", pair.from},
                    {"to", pair.to},
                    {"reachable", pair.works()},
                    {"rtt_us", pair.rtt_us},
                    {"loss", pair.loss()},
                    {"fragmented", pair.cut_to_fragments()},
                    {"flood_loss", nullptr},
                    {"rate_gbps", nullptr}});
    if (!pair.flooded()) continue;
    json.back()["flood_loss"] = pair.flood_loss();
    json.back()["rate_gbps"] = pair.rate_gbps;
  }
  return json_report(std::move(config), std::move(json));
}

int check_as_rank(const CheckOptions& options, const LaunchPlace& place) {
  if (place.world_size > Communicator::kMostOfOne) {
    const std::string text = fmt::format(
        "check: {} ranks: it probes each pair of at most {}: start one rank on each "
        "host, whose link its ranks share",
        place.world_size, Communicator::kMostOfOne);
    return report(Error::make(Error::Code::invalid_argument, text), place.voice);
  }
  auto communicator_options = session_options(
      options.job, place, fmt::format("command=check\nprobes={}\n", options.probes));
  if (!communicator_options) return report(communicator_options.error(), place.voice);
  auto connection = [&] {
    const Interruption watch = watch_connecting(options.job, place, options.json);
    return connect_session(*communicator_options, place);
  }();
  if (!connection) return report(connection.error(), place.voice);
  const bool first = place.rank == 0;
  const auto possible = first ? check_json(options.json) : Result<void>();
  if (auto all = agree(*connection->control, possible); !all)
    return report(all.error(), place.voice);
  auto pairs = probe_pairs(*connection, options);
  if (!pairs) return report(pairs.error(), place.voice);
  if (first) print(options.job.text, *pairs, *connection);
  const auto written =
      first ? write_json(options.json, to_json(*pairs, *connection, options)) : Result<void>();
  if (auto saved = agree(*connection->control, written); !saved)
    return report(saved.error(), place.voice);
  const auto good = [](const PairProbe& pair) { return pair.good(); };
  return std::all_of(pairs->begin(), pairs->end(), good) ? 0 : 1;
}

}  // namespace

void add_check_options(cli::OptionTable& table, CheckOptions& options) {
  add_job_options(table, options.job);
  table.add("Probes", {{"--probes", cli::whole(options.probes, 1u, 1000u), "round trips per pair",
                        cli::Scope::job}});
  table.add("Reports",
            {{"-J,--json", cli::file(options.json),
              "write the matrix to this file (rank 0); - is standard output, the text then goes to "
              "standard error"}});
  add_fault_options(table, options.job);
  table.note(fmt::format("In the matrices {}.", kHowMeasured));
}

int run_check(CheckOptions& options, const cli::Invocation&) {
  const Voice voice = Voice::of_launcher(process_environment());
  options.job.text = text_stream(options.json);
  if (auto good = check_job_options(options.job); !good) return report(good.error(), voice);
  return run_job(options.job,
                 [&](const LaunchPlace& place) { return check_as_rank(options, place); });
}

}  // namespace tarpon
