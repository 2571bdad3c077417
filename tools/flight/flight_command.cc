#include "tools/flight/flight_command.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <iterator>
#include <set>
#include <span>

#include "tools/cli/files/report_output.h"
#include "tools/cli/files/whole_file.h"
#include "tools/cli/voice.h"
#include "tools/flight/flight_report.h"
#include "tools/flight/merge.h"
#include "tools/flight/verdict.h"
#include "tools/job/rank_sockets.h"
#include "xdp/base/printable.h"

namespace tarpon {
namespace {

constexpr Duration kPatience = 1s;

Result<std::uint32_t> parse_job(const std::string& text) {
  std::uint32_t job = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, job, 16);
  if (error == std::errc() && stop == end && !text.empty()) return job;
  return fail(
      Error::Code::invalid_argument,
      fmt::format("\"{}\" is not a job: give the 8 hex digits that file names and `tarpon status` "
                  "show",
                  printable(text)));
}

/// Refuses to choose among the jobs that run here: the newest may be another user's.
Result<void> check_one_job(const std::set<std::uint32_t>& jobs) {
  if (jobs.size() < 2) return {};
  constexpr std::size_t kShown = 4;
  std::string names;
  for (auto job = jobs.begin(); job != jobs.end(); ++job) {
    const auto number = static_cast<std::size_t>(std::distance(jobs.begin(), job));
    if (number == kShown) {
      names += ", ...";
      break;
    }
    names += fmt::format("{}{:08x}", number == 0 ? "" : ", ", *job);
  }
  return fail(
      Error::Code::invalid_argument,
      fmt::format("flight: {} jobs run here ({}): name one with --job", jobs.size(), names));
}

/// The rings of the ranks of `job` that run here; without it, of the only job.
Result<std::vector<FlightDump>> ask_for_flights(std::optional<std::uint32_t> job) {
  std::vector<FlightDump> dumps;
  auto asked = ask_ranks("flight", kPatience);
  if (!asked) return fail(asked.error());
  std::vector<RankAnswer>& answers = *asked;
  if (job) std::erase_if(answers, [&](const RankAnswer& one) { return one.public_id != *job; });
  std::set<std::uint32_t> jobs;
  for (const RankAnswer& answer : answers) jobs.insert(answer.public_id);
  if (auto one = check_one_job(jobs); !one) return fail(one.error());
  for (const RankAnswer& answer : answers) {
    const std::string name = fmt::format("rank {} of job {:08x}", answer.rank, answer.public_id);
    if (!answer.error.empty()) {
      Voice().error(fmt::format("{}: {}", name, answer.error));
      continue;
    }
    auto dump = parse_flight(std::as_bytes(std::span(answer.bytes)), name);
    // Another job may run another version, and root may have asked a stranger's process.
    if (!dump) {
      Voice().error(dump.error().message);
      continue;
    }
    dumps.push_back(std::move(*dump));
  }
  if (!dumps.empty()) return dumps;
  return fail(
      Error::Code::invalid_argument,
      job ? fmt::format("flight: no rank of job {:08x} answers here: see tarpon status", *job)
          : "flight: no rank is running here: name the recordings, or their directory");
}

Result<void> show(const FlightCommandOptions& options) {
  auto dumps = options.paths.empty() ? ask_for_flights(options.job) : read_flights(options.paths);
  if (!dumps) return fail(dumps.error());
  const auto job = merge_flights(std::move(*dumps), options.job);
  if (!job) return fail(job.error());
  const FlightVerdict verdict = judge_flight(*job);
  if (options.json) {
    nlohmann::json results = nlohmann::json::array();
    results.push_back(flight_json(*job, verdict));
    fmt::print("{}", json_text(json_report(report_config(), std::move(results))));
  } else if (options.verdict) {
    fmt::print("{}", verdict_text(*job, verdict));
  } else {
    fmt::print("{}", flight_text(*job, verdict, options.all));
  }
  if (options.svg.empty()) return {};
  return write_whole_file(options.svg, flight_svg(*job, verdict));
}

}  // namespace

void add_flight_options(cli::OptionTable& table, FlightCommandOptions& options) {
  cli::Value files = cli::words(options.paths, "FILE", cli::Times::each);
  table.add("Options",
            {{"FILE", completed(std::move(files), cli::Complete::file),
              "recordings, or directories of them; without one the ranks that run on this host are "
              "asked for theirs"},
             {"--job",
              otherwise(cli::parsed(options.job, "ID", parse_job),
                        "the newest recording's; the only one that runs"),
              "the job with this id, 8 hex digits"},
             {"--all", cli::flag(options.all),
              "every event, not only those of the operation in question"},
             {"--json", cli::flag(options.json), "one JSON object with every event"},
             {.names = "--verdict",
              .value = cli::flag(options.verdict),
              .help = "the job and its verdict alone: the first and last lines of the report",
              .excludes = {"--all", "--json"}},
             {"--svg", cli::file(options.svg), "draw it: ranks as rows, stages as bars"}});
  table.note(
      "Recordings are JOB.RANK.flight in the directory that --flight or TARPON_FLIGHT named. Times "
      "are milliseconds since the first event shown; ranks on several hosts are laid onto one "
      "clock by their packets.");
}

int run_flight(const FlightCommandOptions& options) {
  const auto shown = show(options);
  std::fflush(stdout);
  if (shown) return 0;
  Voice().error(printable(shown.error().message, kLongestMessage));
  return 1;
}

}  // namespace tarpon
