#include "tools/simulation/seeds/sim_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cstdio>
#include <memory>

#include "tools/cli/exit_code.h"
#include "tools/cli/files/text_file.h"
#include "tools/cli/interruption.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/voice.h"
#include "tools/simulation/seeds/events.h"
#include "tools/simulation/seeds/sweep.h"
#include "transport/simulated/delay_trace.h"
#include "xdp/base/output_place.h"

namespace tarpon {
namespace {

// From kManySeeds seeds on, each mark has to be reached kEnough times.
constexpr std::uint64_t kManySeeds = 10'000;
constexpr std::uint64_t kEnough = 100;

int refuse(const std::string& message) {
  Voice().error(message);
  return 2;
}

/// What a seed broke, and the command that repeats it. Empty for a good seed.
std::string complaint(const SimulationPlan& plan, const SimulationResult& result,
                      const SimOptions& options) {
  if (result.violations.empty()) return "";
  std::string text;
  for (const std::string& violation : result.violations) {
    text += "  broken: " + violation + "\n";
  }
  const auto said = [](const char* option, const std::string& value) {
    return value.empty() ? "" : fmt::format(" {} {}", option, value);
  };
  return text + fmt::format("  repeat: tarpon-sim seeds --seed {}{}{}{}\n", plan.seed,
                            said("--faults", options.faults == "all" ? "" : options.faults),
                            said("--delays", options.delays),
                            said("--stragglers", options.stragglers));
}

void print_figures(const SimulationResult& result) {
  fmt::print(
      "{} calls, {} with something missing, {} packets (faults of ports: {} lost, {} duplicated, "
      "{} "
      "reordered, {} corrupted, {} truncated) in {:.3f} ms of virtual time\n",
      result.calls, result.partial, result.packets, result.faults.lost, result.faults.duplicated,
      result.faults.reordered, result.faults.corrupted, result.faults.truncated,
      std::chrono::duration<double, std::milli>(result.virtual_time).count());
  fmt::print("trace hash: {:016x}\n", result.trace_hash);
}

/// The traces that a job meets beside its faults.
struct Traces {
  std::vector<DelaySample> delays, stragglers;

  void add_to(SimulationPlan& plan) const {
    for (const DelaySample& sample : delays) {
      if (sample.rank != kUnknownRank && sample.rank >= plan.ranks) continue;
      if (!plan.links) plan.links.emplace();
      plan.links->delay_trace.push_back(sample);
    }
    for (const DelaySample& sample : stragglers) {
      for (Rank rank = 0; rank < plan.ranks; ++rank) {
        if (sample.rank != kUnknownRank && sample.rank != rank) continue;
        plan.pauses.emplace_back(rank, Window{sample.time, sample.time + sample.delay});
      }
    }
  }
};

/// Refuses delays beyond a second. They would break promises that hold on networks of this kind.
Result<std::vector<DelaySample>> read_trace(const std::string& path) {
  if (path.empty()) return std::vector<DelaySample>{};
  const auto text = read_text(path);
  if (!text) return fail(text.error());
  auto samples = parse_delay_trace(*text, path);
  if (!samples) return samples;
  for (const DelaySample& sample : *samples) {
    if (sample.delay <= 1s) continue;
    return fail(Error::Code::invalid_argument,
                fmt::format("{}: a delay of {} us: at most 1000000", path, sample.delay / 1us));
  }
  return samples;
}

int run_one(const SimOptions& options, const FaultSet& faults, const Traces& traces) {
  SimulationHooks hooks;
  std::optional<EventFile> events;
  if (!options.events.empty()) {
    auto created = EventFile::create(options.events);
    if (!created) return refuse(created.error().message);
    events = std::move(*created);
    hooks.event = [&events](Time now, Rank from, Rank to, std::span<const std::byte> packet,
                            std::string_view fate) { events->write(now, from, to, packet, fate); };
  }
  SimulationPlan plan = plan_simulation(options.seed, faults);
  traces.add_to(plan);
  const SimulationResult result = run_simulation(plan, hooks);
  fmt::print("{}\n{}", describe(plan), complaint(plan, result, options));
  print_figures(result);
  if (events) {
    if (const auto closed = events->close(); !closed) return refuse(closed.error().message);
  }
  return result.violations.empty() ? 0 : 1;
}

int run_many(const SimOptions& options, const FaultSet& faults, const Traces& traces) {
  const auto plan_of = [&](std::uint64_t seed) {
    SimulationPlan plan = plan_simulation(seed, faults);
    traces.add_to(plan);
    return plan;
  };
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(nullptr, &std::fclose);
  if (!options.failures.empty()) {
    const auto opened = open_stream(options.failures, "w");
    if (!opened) return refuse("--failures " + opened.error().message);
    file.reset(*opened);
  }
  ProgressLine progress(true);
  std::atomic<std::uint64_t> done = 0, failed = 0;
  const Interruption interruption([&] {
    progress.clear();
    fmt::print("ended by a signal: {} of {} seeds, {} failed\n", done.load(), options.seeds,
               failed.load());
    std::fflush(stdout);
  });
  const auto report = [&](const SimulationPlan& plan, const SimulationResult& result) {
    ++failed;
    progress.clear();
    const std::string text = describe(plan) + "\n" + complaint(plan, result, options);
    fmt::print("{}", text);
    std::fflush(stdout);
    if (file == nullptr) return;
    std::fputs(text.c_str(), file.get());
    std::fflush(file.get());
  };
  const Coverage coverage = run_seeds(
      {options.seed, options.seeds, options.jobs}, plan_of, report, [&](std::uint64_t so_far) {
        done = so_far;
        progress.update(static_cast<double>(so_far) / static_cast<double>(options.seeds),
                        fmt::format("{} seeds, {} failed", so_far, failed.load()));
      });
  progress.clear();
  fmt::print("{}{} seeds, {} failed\n", coverage.table(kEnough), options.seeds, failed.load());
  if (file != nullptr && std::ferror(file.get()) != 0) {
    Voice().error(fmt::format("--failures {}: not all of it could be written", options.failures));
    return kFailed;
  }
  const bool many = options.seeds >= kManySeeds && faults == all_faults();
  const std::vector<std::string> rare = coverage.rare(options.marks.value_or(many ? kEnough : 0));
  if (!rare.empty()) fmt::print("reached too rarely: {}\n", fmt::join(rare, ", "));
  return failed == 0 && rare.empty() ? 0 : 1;
}

}  // namespace

void add_sim_options(cli::OptionTable& table, SimOptions& options) {
  table.add(
      "Seeds",
      {{"--seed", cli::whole(options.seed), "the (first) seed, which fixes everything"},
       {"--seeds",
        given(cli::whole(options.seeds, std::uint64_t{1}, std::uint64_t{UINT32_MAX}),
              cli::Times::last),
        "how many, counting up"},
       {"--jobs", given(cli::whole(options.jobs, 0u, 1024u), cli::Times::last),
        "seeds at once, 0: one per processor; changes no result"},
       {"--faults", cli::text(options.faults, "NAME,..."),
        "only these faults: names with commas between them, all or none"},
       {"--delays", cli::file(options.delays),
        "CSV file time_us,rank,delay_us: from then on what the rank (* for all) sends takes so "
        "much longer; beside the faults"},
       {"--stragglers", cli::file(options.stragglers),
        "CSV file time_us,rank,delay_us: the rank (* for all) stands still for so long"}});
  table.add(
      "Reports",
      {{"--failures", cli::file(options.failures), "write the seeds that fail to this file"},
       {"--marks",
        otherwise(cli::whole(options.marks),
                  fmt::format("{} from {} seeds with all faults on, else 0", kEnough, kManySeeds)),
        "fail where a fault, a drop reason or a status is reached less often"},
       {"--events", cli::file(options.events),
        "write what became of each packet of the seed to this file, as CSV"}});
}

int run_sim(const SimOptions& options, const cli::Invocation& invocation) {
  if (invocation.names.empty()) {
    return refuse(
        "seeds: give --seed N, which repeats a run of the simulation, or --seeds N for many "
        "runs; tarpon-sim scale models many ranks");
  }
  const Result<FaultSet> faults = parse_faults(options.faults);
  if (!faults) return refuse(faults.error().message);
  auto delays = read_trace(options.delays);
  if (!delays) return refuse(delays.error().message);
  auto stragglers = read_trace(options.stragglers);
  if (!stragglers) return refuse(stragglers.error().message);
  const Traces traces{std::move(*delays), std::move(*stragglers)};
  const bool judged_together = options.seeds > 1 || !options.failures.empty() || options.marks;
  if (!judged_together) return run_one(options, *faults, traces);
  if (!options.events.empty()) return refuse("--events is for one seed: leave --seeds out");
  return run_many(options, *faults, traces);
}

}  // namespace tarpon
