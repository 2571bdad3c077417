// `tarpon all_reduce` and the other collectives: one rank, or a parent of local ranks.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/cli/exit_code.h"
#include "tools/cli/files/report_output.h"
#include "tools/collective/benchmark.h"
#include "tools/collective/collective_options.h"
#include "tools/collective/file_job.h"
#include "tools/job/rank_names.h"
#include "tools/job/session.h"

namespace tarpon {
namespace {

std::string counts(const PortStatistics& port) {
  return fmt::format(
      "sent {} packets ({} by the socket beside AF_XDP, {} given up), received {} ({} by that "
      "socket), lost {} in full buffers, refused {} of strangers, {} forged, {} replayed; {} "
      "system calls, {} waits",
      port.tx_packets, port.local_path, port.tx_dropped, port.rx_packets, port.slow_path,
      port.rx_overruns, port.rx_refused, port.rx_forged, port.rx_replayed, port.system_calls,
      port.waits);
}

/// Sets the group size if none is given: the ranks of one host, if the launcher tells their number
/// and it divides the number of all ranks; else default_group_size().
Result<void> settle_groups(CollectiveOptions& options, const LaunchPlace& place) {
  if (options.algorithm != Algorithm::two_level_tar) return {};
  const std::uint32_t world = place.world_size;
  if (options.group_size == 0) {
    const auto here = static_cast<std::uint32_t>(std::max(0, place.local_size));
    const bool by_host = here > 1 && here < world && world % here == 0;
    options.group_size = by_host ? here : default_group_size(world);
  }
  if (world % options.group_size == 0) return {};
  return fail(Error::Code::invalid_argument,
              fmt::format("--group-size {} does not divide {}: give a divisor", options.group_size,
                          rank_count(world)));
}

Result<void> check_late_rank(const CollectiveOptions& options, std::uint32_t world) {
  if (options.algorithm != Algorithm::late_rank) return {};
  if (!std::has_single_bit(world)) {
    return fail(Error::Code::invalid_argument,
                fmt::format("--algorithm late-rank needs 2, 4, 8, ... ranks, not {}: give --shares "
                            "with 0 for that rank",
                            world));
  }
  const std::uint32_t late = options.late_rank.value_or(0);
  if (late < world) return {};
  return fail(Error::Code::invalid_argument,
              fmt::format("--late-rank {} of {}: ranks count from 0", late, rank_count(world)));
}

Result<void> check_delay(const std::optional<InjectedDelay>& delay, std::uint32_t world) {
  if (!delay || delay->rank < world) return {};
  return fail(Error::Code::invalid_argument, fmt::format("--inject-late of rank {} of {}: ranks "
                                                         "count from 0",
                                                         delay->rank, rank_count(world)));
}

Result<void> check_root(Rank root, std::uint32_t world) {
  if (root < world) return {};
  return fail(Error::Code::invalid_argument,
              fmt::format("--root {} of {}: ranks count from 0", root, rank_count(world)));
}

Result<void> check_peers(const CollectiveOptions& options, std::uint32_t world) {
  if (!is_message(options.row->collective) || world > 1) return {};
  return fail(Error::Code::invalid_argument,
              fmt::format("{} of 1 rank: no rank sends to itself; give 2 ranks or more, for "
                          "example --local-ranks 2",
                          options.row->command));
}

Result<void> check_shares(const CollectiveOptions& options, std::uint32_t world) {
  const Shares& shares = options.shares;
  if (shares.even() || shares.ranks() == world) return {};
  return fail(Error::Code::invalid_argument,
              fmt::format("{} has {} for {}: give one for each rank", options.shares_flag,
                          shares.ranks(), rank_count(world)));
}

/// Tells of variables that decide how the calls of tarpon run and tarpon_torch go, but not these.
void tell_unread_variables(const CollectiveOptions& options, const Environment& environment) {
  for (const auto& [variable, flag] : {std::pair{"TARPON_MODE", "--mode"},
                                       {"TARPON_BOUND", "--bound"},
                                       {"TARPON_DEADLINE", "--deadline"},
                                       {"TARPON_SHARES", "--shares"}}) {
    const bool of_bounds =
        flag == std::string_view("--mode") || flag == std::string_view("--bound");
    const bool has_flag = options.of_allreduce() || (options.may_be_bounded() && of_bounds) ||
                          flag == std::string_view("--deadline");
    if (!environment(variable) || !has_flag) continue;
    fmt::print(options.job.text, "# {} has no effect on tarpon {}: give {}\n", variable,
               options.row->command, flag);
  }
}

int collective_as_rank(CollectiveOptions options, const LaunchPlace& place) {
  if (auto good = check_paths(options, place.world_size); !good)
    return report(good.error(), place.voice);
  if (auto good = settle_groups(options, place); !good) return report(good.error(), place.voice);
  if (auto good = check_late_rank(options, place.world_size); !good)
    return report(good.error(), place.voice);
  if (auto good = check_delay(options.delay, place.world_size); !good)
    return report(good.error(), place.voice);
  if (auto good = check_root(options.kind.root, place.world_size); !good)
    return report(good.error(), place.voice);
  if (auto good = check_peers(options, place.world_size); !good)
    return report(good.error(), place.voice);
  if (auto good = check_shares(options, place.world_size); !good)
    return report(good.error(), place.voice);
  auto session = [&] {
    const Interruption watch = watch_connecting(options.job, place, options.json);
    return open_session(options.job, place, agreed_options(options));
  }();
  if (!session) return report(session.error(), place.voice);
  if (place.rank == 0) tell_unread_variables(options, process_environment());
  const int code =
      options.file_form() ? run_file_job(options, *session) : run_benchmark(options, *session);
  if (code != 0 && !session->flight.empty()) {
    place.voice.error("what led to it: tarpon flight " + session->flight);
  }
  // Peers may still need this rank's last result. After a failure this rank waits for no peer.
  if (code == 0) {
    session->log.write(DebugLevel::info, "NET", counts(session->communicator->port_statistics()));
    if (auto closed = session->communicator->close(options.job.deadline); !closed)
      return report(closed.error(), place.voice);
  }
  return code;
}

/// Settles what `options` stand for and runs the command in this process; returns the exit code.
int run_collective(CollectiveOptions& options, const cli::Invocation& invocation) {
  const Voice voice = Voice::of_launcher(process_environment());
  if (auto settled = settle_form(invocation, options); !settled)
    return report(settled.error(), voice);
  options.job.text = text_stream(options.json);
  if (auto good = check_collective_options(options); !good) return report(good.error(), voice);
  return run_job(options.job,
                 [&](const LaunchPlace& place) { return collective_as_rank(options, place); });
}

/// A command named `name` that runs the collective of `row`.
cli::Command command_of(const MeasuredCollective& row, std::string name, std::string summary) {
  const auto declare = [&row](cli::OptionTable& table) -> cli::Run {
    auto options = std::make_shared<CollectiveOptions>();
    options->row = &row;
    add_collective_options(table, *options);
    return [options](const cli::Invocation& invocation) {
      return run_collective(*options, invocation);
    };
  };
  return {std::move(name), std::move(summary), declare};
}

}  // namespace

std::vector<cli::Command> collective_commands() {
  std::vector<cli::Command> commands;
  for (const MeasuredCollective& row : measured_collectives()) {
    commands.push_back(command_of(row, row.command, row.summary));
    if (row.collective == Collective::allreduce) {
      commands.push_back(command_of(row, "allreduce", "the same as all_reduce"));
    }
  }
  return commands;
}

}  // namespace tarpon
