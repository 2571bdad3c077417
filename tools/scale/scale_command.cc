#include "tools/scale/scale_command.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <string_view>

#include "tools/cli/exit_code.h"
#include "tools/cli/files/report_output.h"
#include "tools/cli/files/text_file.h"
#include "tools/cli/files/whole_file.h"
#include "tools/cli/interruption.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/units.h"
#include "tools/scale/experiment.h"
#include "tools/scale/report.h"
#include "tools/scale/svg.h"

namespace tarpon {
namespace {

using scale::Plan;

tl::unexpected<Error> refuse(std::string text) {
  return fail(Error::Code::invalid_argument, std::move(text));
}

/// Stores `parsed` in `value`, or returns its error with the option's name.
template <typename From, typename To>
Result<void> take(std::string_view option, const Result<From>& parsed, To& value) {
  if (!parsed) return refuse(fmt::format("{} {}", option, parsed.error().message));
  value = static_cast<To>(*parsed);
  return {};
}

Result<std::uint32_t> read_count(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return refuse(fmt::format("\"{}\" is no rank count: write for example 8..1024 or 64", text));
  }
  return value;
}

/// "8..1024": 8, 16, ..., 1024; the last one counts even if doubling does not meet it.
Result<std::vector<std::uint32_t>> read_ranks(std::string_view text) {
  const std::size_t dots = text.find("..");
  const auto first = read_count(text.substr(0, dots));
  const auto last = dots == std::string_view::npos ? first : read_count(text.substr(dots + 2));
  if (!first) return tl::unexpected(first.error());
  if (!last) return tl::unexpected(last.error());
  if (*first < 2 || *last > 4096 || *first > *last) {
    return refuse(fmt::format("\"{}\" is no range of rank counts: 2..4096 at most", text));
  }
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t count = *first; count < *last; count *= 2) ranks.push_back(count);
  ranks.push_back(*last);
  return ranks;
}

/// A rate, or "none": 0.
Result<std::uint64_t> read_optional_rate(std::string_view text) {
  if (text == "none") return 0;
  return parse_rate(text);
}

/// Reads the file at `path` through `parse`. Does nothing if `path` is empty.
template <typename Parse, typename To>
Result<void> read_trace(const std::string& path, Parse parse, To& to) {
  if (path.empty()) return {};
  auto text = read_text(path);
  if (!text) return fail(text.error());
  auto parsed = parse(*text, path);
  if (!parsed) return fail(parsed.error());
  to = std::move(*parsed);
  return {};
}

Result<void> read_traces(const ScaleOptions& options, scale::Network& network) {
  auto read = read_trace(options.delay_trace, parse_delay_trace, network.delay_trace);
  if (!read) return read;
  return read_trace(options.straggler_trace, scale::parse_straggler_trace, network.straggler_trace);
}

// At a higher loss reliable algorithms hardly ever end.
constexpr double kMostLoss = 0.5;

Result<void> read_network(const ScaleOptions& options, scale::Network& network) {
  const std::string& egress = options.egress_rate.empty() ? options.rate : options.egress_rate;
  for (const Result<void>& taken :
       {take("--rate", parse_rate(options.rate), network.bits_per_second),
        take("--egress-rate", read_optional_rate(egress), network.egress_bits_per_second),
        take("--queue", parse_bytes(options.queue), network.queue_bytes),
        take("--burst", parse_bytes(options.burst), network.burst_bytes),
        take("--core", read_optional_rate(options.core), network.core_bits_per_second),
        take("--delay", parse_duration(options.delay), network.delay),
        take("--late", parse_duration(options.late), network.late),
        take("--loss", parse_probability(options.loss), network.loss),
        take("--stragglers", parse_probability(options.stragglers), network.stragglers),
        take("--background", read_optional_rate(options.background),
             network.background_bits_per_second),
        take("--background-burst", parse_bytes(options.background_burst),
             network.background_burst_bytes)}) {
    if (!taken) return taken;
  }
  if (network.loss > kMostLoss) {
    return fail(Error::Code::invalid_argument,
                fmt::format("--loss: {} is more than the model can repair: at most {:g}%",
                            options.loss, 100 * kMostLoss));
  }
  if (network.background_bits_per_second >= network.bits_per_second) {
    return fail(Error::Code::invalid_argument,
                fmt::format("--background: {} leaves nothing of --rate {}: choose less",
                            options.background, options.rate));
  }
  if (auto read = read_traces(options, network); !read) return read;
  network.mtu = options.mtu;
  network.frame = options.frame;
  network.tail = options.tail;
  return {};
}

Result<Plan> read_plan(const ScaleOptions& options) {
  Plan plan;
  if (auto read = read_network(options, plan.network); !read) return tl::unexpected(read.error());
  Result<void> taken = take("--ranks", read_ranks(options.ranks), plan.ranks);
  if (taken) taken = take("--bytes", parse_bytes(options.bytes), plan.bytes);
  if (taken && options.bound != "learnt") {
    Duration bound{};
    taken = take("--bound", parse_limit(options.bound), bound);
    plan.bound = bound;
    if (taken && !options.loss_target.empty()) {
      return refuse("--loss-target is of a learnt bound: leave it or --bound out");
    }
  }
  if (taken && !options.loss_target.empty()) {
    taken = take("--loss-target", parse_probability(options.loss_target), plan.loss_target);
  }
  if (!taken) return tl::unexpected(taken.error());
  for (const std::string& name : options.algorithms) {
    plan.algorithms.push_back(*scale::algorithm_named(name));  // CLI11 has checked it
  }
  plan.operations = options.operations;
  plan.train_packets = options.train;
  plan.seed = options.seed;
  plan.threads = options.threads;
  plan.repair = options.repair == "all"      ? scale::Repair::all
                : options.repair == "gather" ? scale::Repair::gather
                                             : scale::Repair::none;
  plan.tail_loss = options.tail_loss == "rto" ? scale::TailLoss::rto : scale::TailLoss::probe;
  if (auto possible = check(plan); !possible) return tl::unexpected(possible.error());
  return plan;
}

/// Words that stand for themselves.
cli::Value word(std::string& target, const std::vector<std::string>& words) {
  cli::Choices<std::string> choices;
  for (const std::string& one : words) choices.emplace_back(one, one);
  return cli::choice(target, choices);
}

void add_network_options(cli::OptionTable& table, ScaleOptions& options) {
  const char* const rate = "RATE|none";
  table.add(
      "Network",
      {{"--rate", cli::text(options.rate, "RATE"), "rate of the link to each rank"},
       {"--egress-rate", otherwise(cli::text(options.egress_rate, rate), "that of --rate"),
        "rate of each rank's own interface; none: no limit"},
       {"--queue", cli::text(options.queue, "SIZE"),
        "queue before the link to a rank; 0: unlimited"},
       {"--burst", cli::text(options.burst, "SIZE"),
        "bytes that this link lets pass at once after a pause, as tbf does"},
       {"--core", cli::text(options.core, rate), "rate of a core that all share"},
       {"--delay", cli::text(options.delay, "DURATION"), "delay one way"},
       {"--mtu", cli::whole(options.mtu, 0u, 9000u), "MTU of all links"},
       {"--frame", cli::whole(options.frame, 0u, 100u),
        "bytes that a packet costs beyond the MTU; tc counts 14"},
       {"--loss", cli::text(options.loss, "SHARE"), "share of the packets that are lost"},
       {"--tail", cli::number(options.tail, 1.0, 50.0),
        "P99/P50 of the environment: 8 ranks that wait for the slowest; 1: no tail"},
       {"--stragglers", cli::text(options.stragglers, "SHARE"),
        "chance that a rank has an episode in an operation; 0.13% to 8%"},
       {"--delay-trace", cli::file(options.delay_trace),
        "CSV file of more delay on the way of what a rank sends: time_us,rank,delay_us"},
       {"--straggler-trace", cli::file(options.straggler_trace),
        "CSV file of episodes in place of drawn ones: operation,rank,from_us,length_us"},
       {"--late", cli::text(options.late, "DURATION"),
        "rank 0 begins so much later than the others, in place of drawn episodes; times count "
        "from then on"},
       {"--background", cli::text(options.background, rate),
        "rate offered between ranks 0 and 1, each way, by others"},
       {"--background-burst", cli::text(options.background_burst, "SIZE"),
        "bytes that come at once"}});
}

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names;
  for (const scale::Algorithm one : scale::kAlgorithms) names.emplace_back(name_of(one));
  return names;
}

void add_comparison_options(cli::OptionTable& table, ScaleOptions& options) {
  table.add(
      "Comparison",
      {{"--ranks", cli::text(options.ranks, "N|N..N"),
        "a count, or FIRST..LAST: doubled from one to the next; on 2 cores 8..256 takes some 3 "
        "minutes, 8..1024 some 15"},
       {"--algorithms",
        cli::words(options.algorithms, "NAME,...", cli::Times::list, algorithm_names()),
        "which to compare: bounded, TCP by the schedules of tarpon allreduce --algorithm, and "
        "Gloo's halving-doubling; late-rank, stragglar (the same, one chunk a rank) and tar-shares "
        "(no share for it) take rank 0 for the late one"},
       {"--bytes", cli::text(options.bytes, "SIZE"), "size of the bucket that is reduced"},
       {"--operations", cli::whole(options.operations, 0u, 1'000'000u),
        "operations of each cell; 0: 100, and 50 above 512 ranks"},
       {"--bound", cli::text(options.bound, "DURATION|learnt"),
        "time of a whole operation of bounded"},
       {"--loss-target",
        otherwise(cli::text(options.loss_target, "SHARE"), cli::share_text(Plan().loss_target)),
        "share that a learnt bound loses on average"},
       {"--repair", word(options.repair, {"all", "gather", "none"}),
        "in which stages bounded sends lost packets again; gather: the second"},
       {"--tail-loss", word(options.tail_loss, {"probe", "rto"}),
        "what TCP does when the end of a burst is lost; probe: as Linux"},
       {"--train", cli::whole(options.train, 0u, 64u),
        "packets that travel as one; 0: by the rank count"},
       {"--seed", cli::whole(options.seed), "the seed, which fixes everything"},
       {"--threads", cli::whole(options.threads, 0u, 1024u),
        "threads; 0: one per processor; changes no result"}});
}

}  // namespace

void add_scale_options(cli::OptionTable& table, ScaleOptions& options) {
  add_comparison_options(table, options);
  add_network_options(table, options);
  table.add("Reports", {{"--json", cli::file(options.json),
                         "write all figures to this file; - is standard output, the table then "
                         "goes to standard error"},
                        {"--svg", cli::file(options.svg), "draw the curves into this file"}});
}

int run_scale(const ScaleOptions& options) {
  const Result<Plan> plan = read_plan(options);
  if (!plan) {
    Voice().error(plan.error().message);
    return kUsage;
  }
  Result<void> possible = check_json(options.json);
  if (possible && !options.svg.empty()) possible = WholeFile::check(options.svg);
  if (!possible) return report(possible.error());
  std::FILE* const text = text_stream(options.json);
  fmt::print(text, "{}", describe(*plan));
  ProgressLine progress(true);
  const Interruption interruption([&progress] { progress.clear(); });
  const auto results = run_plan(*plan, [&](double done, double total) {
    progress.update(done / total, "of the operations, by their size");
  });
  progress.clear();
  fmt::print(text, "{}", table(*plan, results));
  nlohmann::json config = report_config();
  config.update(scale::config_json(*plan));
  const auto reported =
      write_json(options.json, json_report(std::move(config), results_json(results)));
  const auto draw = plan->network.late > Duration{} ? scale::draw_after_arrival : scale::draw;
  const auto drawn =
      options.svg.empty() ? Result<void>() : write_whole_file(options.svg, draw(*plan, results));
  for (const Result<void>& written : {reported, drawn}) {
    if (!written) report(written.error());
  }
  return reported && drawn ? 0 : kFailed;
}

}  // namespace tarpon
