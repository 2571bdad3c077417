#include "tools/timed_calls.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <span>

#include "tools/agreement.h"
#include "tools/host_info.h"
#include "tools/version.h"
#include "tools/whole_file.h"
#include "transport/clock.h"

namespace tarpon {

namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::uint64_t max_rss_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss);
}

}  // namespace

IterationLog run_timed(const TimedCalls& calls, const void* input, void* output,
                       std::uint64_t count, Report& last) {
  IterationLog log;
  const AllreduceArguments arguments = call_arguments(calls.options, input, output, count);
  for (std::uint32_t i = 0; i < calls.warmup + calls.iterations; ++i) {
    calls.refill();
    if (const auto met = calls.communicator.barrier(arguments.deadline); !met) {
      log.error = met.error().message;
      return log;
    }
    const double cpu_before = cpu_seconds();
    const Time start = monotonic_now();
    auto report = calls.communicator.allreduce(arguments);
    const Time stop = monotonic_now();
    if (!report) {
      log.error = report.error().message;
      return log;
    }
    if (report->status != Status::complete && report->status != Status::partial) {
      log.error = fmt::format("{}: {}", name(report->status), report->detail);
      return log;
    }
    if (i >= calls.warmup) {
      log.cpu_s += cpu_seconds() - cpu_before;
      log.time_us.push_back(std::chrono::duration<double, std::micro>(stop - start).count());
      std::uint64_t late = 0;
      for (const Rank rank : report->late_ranks) late |= 1ull << rank;
      log.late.push_back(late);
      log.lost_fraction = std::max(log.lost_fraction, report->lost_fraction);
      log.lost_stage1 = std::max(log.lost_stage1, report->lost_stage1);
      log.lost_stage2 = std::max(log.lost_stage2, report->lost_stage2);
    }
    if (calls.log.enabled(DebugLevel::trace)) {
      calls.log.write(DebugLevel::trace, "CALL",
                      fmt::format("operation {} of tag {}: {} in {:.1f} us {}", report->operation,
                                  report->tag, name(report->status),
                                  std::chrono::duration<double, std::micro>(stop - start).count(),
                                  report->detail));
    }
    last = std::move(*report);
    calls.progress(i + 1);
  }
  log.max_rss_kib = max_rss_kib();
  if (calls.count_wrong) log.wrong = calls.count_wrong(last);
  return log;
}

namespace {

// Iterations in one message: some 5 MB as text, of the 16 MiB that a message may hold.
constexpr std::size_t kPiece = 100'000;

void append(const IterationLog& piece, IterationLog& log) {
  log.time_us.insert(log.time_us.end(), piece.time_us.begin(), piece.time_us.end());
  log.late.insert(log.late.end(), piece.late.begin(), piece.late.end());
}

Result<std::vector<IterationLog>> share_piece(ControlChannel& control, const IterationLog& mine,
                                              std::size_t from, Duration bound) {
  auto texts = control.all_gather(to_text(mine, from, kPiece), monotonic_now() + bound);
  if (!texts) {
    if (mine.error.empty()) return fail(texts.error());
    if (texts.error().code == Error::Code::timeout) return fail(Error::Code::timeout, mine.error);
    return fail(Error::Code::io, fmt::format("{}; {}", mine.error, texts.error().message));
  }
  std::vector<IterationLog> logs;
  std::string errors;
  std::set<std::string> said;
  for (std::size_t rank = 0; rank < texts->size(); ++rank) {
    auto log = iteration_log_from((*texts)[rank]);
    if (!log) return fail(Error::Code::mismatch, fmt::format("rank {} sent no valid log", rank));
    if (!log->error.empty() && said.insert(log->error).second) {
      errors += fmt::format("{}rank {}: {}", errors.empty() ? "" : "; ", rank, log->error);
    }
    logs.push_back(std::move(*log));
  }
  if (!errors.empty()) return fail(Error::Code::io, errors);
  return logs;
}

}  // namespace

Result<std::vector<IterationLog>> share_logs(ControlChannel& control, const IterationLog& mine,
                                             Duration deadline) {
  // A failed rank has waited long enough itself, and knows whom it lacked.
  const Duration bound = mine.error.empty() ? kControlBound : std::min<Duration>(deadline, 1s);
  auto logs = share_piece(control, mine, 0, bound);
  // Nobody has failed: all have the same number of iterations.
  for (std::size_t from = kPiece; logs && from < mine.time_us.size(); from += kPiece) {
    auto more = share_piece(control, mine, from, bound);
    if (!more) return more;
    for (std::size_t rank = 0; rank < logs->size(); ++rank) append((*more)[rank], (*logs)[rank]);
  }
  return logs;
}

std::string datapath_of(const Communicator& communicator) {
  const std::vector<RankInfo>& ranks = communicator.ranks();
  for (const RankInfo& rank : ranks) {
    if (rank.datapath != ranks[0].datapath) return "mixed";
  }
  return ranks[0].datapath;
}

nlohmann::json config_json(const AllreduceOptions& options, const Communicator& communicator) {
  const HostInfo host = read_host_info();
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankInfo& rank : communicator.ranks()) {
    ranks.push_back({{"host", rank.host},
                     {"interface", rank.interface},
                     {"driver", rank.driver},
                     {"mtu", rank.mtu},
                     {"datapath", rank.datapath},
                     {"datapath_reason", rank.datapath_reason},
                     {"address", rank.address}});
  }
  const char* integrity = communicator.integrity() == TARPON_INTEGRITY_CRC32C ? "crc32c"
                          : communicator.integrity() == TARPON_INTEGRITY_UDP  ? "udp"
                                                                              : "none";
  return {{"command", options.job.command_line},
          {"version", kVersion},
          {"git_commit", kGitCommit},
          {"seed", options.job.seed},
          {"kernel", host.kernel},
          {"cpu", host.cpu_model},
          {"cpus", host.cpus},
          {"world_size", communicator.world_size()},
          {"slot_bytes", communicator.slot_bytes()},
          {"integrity", integrity},
          {"ranks", ranks}};
}

Result<void> check_json(const std::string& path) {
  return path.empty() ? Result<void>() : WholeFile::check(path);
}

Result<void> write_json(const std::string& path, const nlohmann::json& json) {
  if (path.empty()) return {};
  auto file = WholeFile::create(path);
  if (!file) return fail(file.error());
  const std::string text =
      json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  if (auto put = file->write(std::as_bytes(std::span(text))); !put) return put;
  return file->commit();
}

}  // namespace tarpon
