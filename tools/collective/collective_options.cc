#include "tools/collective/collective_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "tools/cli/units.h"
#include "tools/job/nccl_flags.h"

namespace tarpon {

using cli::Scope;

namespace {

/// A value that `parse` knows by name, in lower or upper case. `names`: the names to list.
template <typename T>
cli::Value named(T& target, std::optional<T> (*parse)(std::string_view),
                 const std::vector<std::string>& names) {
  cli::Choices<T> choices;
  for (const std::string& one : names) choices.emplace_back(one, parse(one).value());
  return cli::choice(target, choices);
}

/// Like named(), but also accepts `all`, and names that `parse` knows beyond the listed ones.
template <typename T>
cli::Value named_or_all(T& target, bool& all, std::optional<T> (*parse)(std::string_view),
                        std::vector<std::string> names) {
  cli::Value value;
  value.initial = name(target);
  names.emplace_back("all");
  value.choices = names;
  value.read = [&target, &all, parse, names](const std::string& text) -> Result<void> {
    const std::string word = cli::lower(text);
    const std::optional<T> found = parse(word);
    all = word == "all";
    if (found) target = *found;
    if (found || all) return {};
    return cli::not_one_of(text, names);
  };
  return value;
}

const std::vector<std::string> kDataTypeChoices{"float", "double", "half",  "bfloat16",
                                                "int8",  "uint8",  "int16", "uint16",
                                                "int32", "uint32", "int64", "uint64"};
const std::vector<std::string> kFunctionChoices{"sum",  "avg",  "min", "max",
                                                "prod", "band", "bor", "bxor"};

/// Like parse_reduce_op(), but refuses `custom`: the tool has no function of its own.
std::optional<ReduceOp> parse_tool_function(std::string_view text) {
  const std::optional<ReduceOp> function = parse_reduce_op(text);
  return function == ReduceOp::custom ? std::nullopt : function;
}

cli::Value timeout(JobOptions& job) {
  const auto parse = [&job](const std::string& text) -> Result<Duration> {
    const auto seconds = cli::parse_whole(text, std::uint64_t{1}, std::uint64_t{UINT32_MAX});
    if (!seconds) return fail(seconds.error());
    job.deadline_given = true;
    return std::chrono::seconds(*seconds);
  };
  return cli::parsed(job.deadline, "N", parse);
}

/// A value whose default differs in the file form, which has `of_files`, if there is one.
cli::Value of_benchmark(cli::Value value, const CollectiveOptions& options,
                        std::uint32_t of_files) {
  if (!options.of_allreduce()) return value;
  value.initial += fmt::format("; with --input {}", of_files);
  return value;
}

void add_benchmark_options(cli::OptionTable& table, CollectiveOptions& options) {
  table.add(
      "Benchmark, as nccl-tests",
      {{"-b,--minbytes", cli::size(options.min_bytes),
        "smallest size; K, M, G and T are powers of 1024, here and elsewhere", Scope::job},
       {"-e,--maxbytes", cli::size(options.max_bytes), "largest size", Scope::job},
       {"-i,--stepbytes", cli::size(options.step_bytes), "from size to size", Scope::job},
       {"-f,--stepfactor", otherwise(cli::whole(options.step_factor, 1u), ""),
        "multiply instead of adding -i", Scope::job},
       {"-n,--iters", of_benchmark(cli::whole(options.iterations, 1u), options, kFileIterations),
        "timed iterations", Scope::job},
       {"-w,--warmup_iters", of_benchmark(cli::whole(options.warmup), options, kFileWarmup),
        "iterations before them", Scope::job},
       {"-c,--check", cli::switched(options.check), "check the result of the last iteration",
        Scope::job},
       {"-N,--run_cycles", cli::whole(options.run_cycles, 1u), "repeat everything", Scope::job},
       {"-d,--datatype",
        noted(named_or_all(options.kind.type, options.all_types, parse_data_type, kDataTypeChoices),
              "TYPE"),
        "float, double, half, bfloat16, int8, uint8, ... uint64, or all of them", Scope::job},
       {"-T,--timeout", timeout(options.job), "deadline in seconds, as --deadline", Scope::job}});
}

Result<BoundOption> parse_bound(const std::string& text) {
  if (text == "optireduce") return BoundOption{BoundRule::optireduce, std::nullopt};
  auto given = parse_limit(text);
  if (!given) {
    return fail(given.error().code, given.error().message + ", or optireduce");
  }
  return BoundOption{BoundRule::automatic, *given};
}

/// Numbers with commas between them; nothing where the text is no such list.
std::vector<double> parse_numbers(const std::string& text) {
  std::vector<double> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at <= end) {
    const auto [stop, error] = std::from_chars(at, end, numbers.emplace_back());
    if (error != std::errc() || (stop != end && *stop != ',')) return {};
    at = stop + 1;
  }
  return numbers;
}

Result<Shares> parse_shares(const std::string& text) {
  if (text == "even" || text == "auto") return Shares();
  const Shares shares(parse_numbers(text));
  if (shares.valid()) return shares;
  return fail(Error::Code::invalid_argument,
              fmt::format("\"{}\" is not even, not auto and not a list of weights, one for each "
                          "rank and one of them above 0, as 0.5,1,1,1",
                          text));
}

Result<Shares> parse_speeds(const std::string& text) {
  const Shares shares = Shares::for_speeds(parse_numbers(text));
  if (shares.valid()) return shares;
  return fail(
      Error::Code::invalid_argument,
      fmt::format("\"{}\" is not a list of speeds above 0, one for each rank, as 0.5,1,1,1", text));
}

Result<InjectedDelay> parse_delay(const std::string& text) {
  const std::size_t at = text.find('=');
  const auto rank = cli::parse_whole(std::string_view(text).substr(0, at), std::uint64_t{0},
                                     std::uint64_t{kUnknownRank - 1});
  if (at == std::string::npos || !rank) {
    return fail(Error::Code::invalid_argument,
                fmt::format("\"{}\": write RANK=DURATION, for example 3=50ms", text));
  }
  const auto by = parse_duration(std::string_view(text).substr(at + 1));
  if (!by) return fail(by.error());
  return InjectedDelay{static_cast<Rank>(*rank), *by};
}

constexpr const char* kCallGroup = "Call";

cli::Option function_option(CollectiveOptions& options) {
  return {"-o,--op",
          noted(named_or_all(options.kind.function, options.all_functions, parse_tool_function,
                             kFunctionChoices),
                "FUNCTION"),
          "sum, avg, min, max, prod, band, bor, bxor, or all of them", Scope::job};
}

cli::Option root_option(CollectiveOptions& options) {
  const auto parse = [&options](const std::string& text) -> Result<Rank> {
    options.all_roots = text == "all" || text == "-1";
    if (options.all_roots) return Rank{0};
    const auto rank = cli::parse_whole(text, std::uint64_t{0}, std::uint64_t{kUnknownRank - 1});
    if (!rank) return fail(rank.error().code, rank.error().message + ", or all");
    return static_cast<Rank>(*rank);
  };
  const auto show = [](Rank rank) { return std::to_string(rank); };
  return {"-r,--root", cli::parsed(options.kind.root, "RANK|all", parse, show),
          "the root; all, or -1: each rank in turn", Scope::job};
}

/// The options of commands that may run bounded.
void add_bound_options(cli::OptionTable& table, CollectiveOptions& options) {
  const bool published = options.of_allreduce();  // the rule is of AllReduce
  const auto limit = [](const std::string& text) -> Result<BoundOption> {
    auto given = parse_limit(text);
    if (!given) return fail(given.error());
    return BoundOption{BoundRule::automatic, *given};
  };
  table.add(
      kCallGroup,
      {{"--mode", named(options.mode, parse_mode, {"exact", "bounded"}),
        "exact: repaired until complete; bounded: ends by its bound with what has arrived",
        Scope::job},
       {"--bound",
        otherwise(published ? cli::parsed(options.bound, "DURATION|optireduce", parse_bound)
                            : cli::parsed(options.bound, "DURATION", limit),
                  "learnt"),
        published ? "bounded mode: time of the whole call; optireduce: 95th percentile of 20 exact "
                    "operations. With --loss-target: the longest that is learnt"
                  : "bounded mode: time of the whole call",
        Scope::job},
       {"--loss-target",
        otherwise(cli::share(options.loss_target),
                  "TARPON_LOSS_TARGET, else " + cli::share_text(Mechanisms().loss_target)),
        "bounded mode: the bound is learnt so that calls lose at most this share on average",
        Scope::job, false,
        published ? std::vector<std::string>{} : std::vector<std::string>{"--bound"}}});
}

void add_call_options(cli::OptionTable& table, CollectiveOptions& options) {
  add_bound_options(table, options);
  const auto shares = [&options](const std::string& text) {
    options.learn_shares = text == "auto";
    return parse_shares(text);
  };
  const auto speeds = [&options](const std::string& text) {
    options.shares_flag = "--link-speeds";
    return parse_speeds(text);
  };
  const cli::Choices<bool> orders{{"rotating", true}, {"fixed", false}};
  const cli::Choices<MissingFill> fills{{"local", MissingFill::local}, {"zero", MissingFill::zero}};
  table.add(
      kCallGroup,
      {{"--algorithm",
        named(options.algorithm, parse_algorithm,
              {"auto", "tar", "circulant", "one-shot", "ring", "recursive-doubling", "2d-tar",
               "late-rank", "hosts"}),
        "of exact calls. auto: hosts where ranks share a host, else one-shot for a few KiB, else "
        "tar. one-shot: one delay; circulant, recursive-doubling: few messages a rank",
        Scope::job},
       {"--group-size",
        otherwise(cli::whole(options.group_size, 1u),
                  "the launcher's ranks a host, else the largest divisor up to the root"),
        "--algorithm 2d-tar: ranks in a group; divides the number of ranks", Scope::job},
       {"--late-rank", otherwise(cli::whole(options.late_rank), "0"),
        "--algorithm late-rank: the rank that comes late, of 2, 4, 8, ... ranks", Scope::job},
       {"--shares", otherwise(cli::parsed(options.shares, "even|auto|LIST", shares), "even"),
        "--algorithm tar: how much of the bucket each rank owns beside the others, as 0,1,1,1; "
        "less for a rank with a slow link. auto: learnt from earlier calls, from 1 MiB on",
        Scope::job},
       {"--link-speeds",
        otherwise(cli::parsed(options.shares, "LIST", speeds), "alike"),
        "--algorithm tar: how fast the links of the ranks are beside one another, as 0.5,1,1,1: "
        "gives the shares with which all ranks finish together",
        Scope::job,
        false,
        {"--shares"}},
       {"--order", otherwise(cli::choice(options.rotation, orders), "TARPON_ORDER, else rotating"),
        "exact calls: which rank adds up which part; fixed: the same in each call, so that equal "
        "inputs give the same bits in each call and run",
        Scope::job},
       {"--missing", cli::choice(options.missing, fills),
        "bounded mode: what fills a hole; local: this rank's own contribution", Scope::job}});
}

void add_report_options(cli::OptionTable& table, CollectiveOptions& options) {
  table.add(
      "Reports",
      {{"--columns",
        otherwise(cli::parsed(options.columns, "NAME,...", parse_columns),
                  options.may_be_bounded() ? "out,in,max; bounded: out,in,lost" : "out,in,max"),
        "of the table: out, in (time, algbw, busbw, #wrong of either place), p50, p99, max, lost, "
        "late (of the calls of both places)"},
       {"-J,--json", cli::file(options.json),
        "write the results to this file (rank 0); - is standard output, the table then goes to "
        "standard error"},
       {"--flight", otherwise(cli::directory(options.job.flight), "TARPON_FLIGHT, else none"),
        "directory for flight recordings: after every status but complete, on SIGUSR1 to a rank "
        "and when SIGTERM or a crash ends it; tarpon flight reads them"}});
}

void add_all_fault_options(cli::OptionTable& table, CollectiveOptions& options) {
  add_fault_options(table, options.job);
  table.add(kFaultGroup,
            {{"--inject-late", cli::parsed(options.delay, "RANK=DURATION", parse_delay),
              "rank RANK makes each call DURATION after the barrier before it, as 3=50ms"}});
}

}  // namespace

std::string bound_rule(const BoundOption& bound) {
  if (bound.rule == BoundRule::optireduce) return "optireduce";
  if (!bound.given) return "learnt";
  const std::string limit = format_duration(*bound.given);
  return bound.rule == BoundRule::learnt ? "learnt, at most " + limit : limit;
}

std::optional<double> loss_target(const CollectiveOptions& options) {
  const BoundOption& bound = options.bound;
  const bool learnt =
      bound.rule == BoundRule::learnt || (bound.rule == BoundRule::automatic && !bound.given);
  return learnt ? std::optional(options.job.mechanisms.loss_target) : std::nullopt;
}

std::vector<SweepKind> kinds_of(const CollectiveOptions& options, std::uint32_t ranks) {
  std::vector<SweepKind> kinds;
  const auto roots = static_cast<Rank>(options.all_roots ? ranks : 1);
  for (std::size_t t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    if (!options.all_types && type != options.kind.type) continue;
    for (std::size_t f = 0; f < kReduceOps; ++f) {
      const auto function = static_cast<ReduceOp>(f);
      if (!options.all_functions && function != options.kind.function) continue;
      if (function == ReduceOp::custom || !is_defined(type, function)) continue;
      for (Rank root = 0; root < roots; ++root) {
        kinds.push_back({type, function, options.all_roots ? root : options.kind.root});
      }
    }
  }
  return kinds;
}

std::optional<double> given_bound_us(const CollectiveOptions& options) {
  const BoundOption& bound = options.bound;
  if (options.mode != Mode::bounded || bound.rule != BoundRule::automatic || !bound.given) {
    return std::nullopt;
  }
  return std::chrono::duration<double, std::micro>(*bound.given).count();
}

namespace {

/// The options of `tarpon all_reduce`.
void add_allreduce_options(cli::OptionTable& table, CollectiveOptions& options) {
  add_job_options(table, options.job);
  table.add("Data path",
            {{"--multicast", cli::flag(options.job.multicast),
              "send results to all ranks by IP multicast, where the network carries it (else as "
              "TARPON_MULTICAST says); the report says where it does not",
              Scope::job}});
  table.add(kCallGroup, {function_option(options)});
  add_call_options(table, options);
  add_benchmark_options(table, options);
  table.add("Arrays from files",
            {{"--input", cli::file(options.input), ".npy of each rank, as dir/rank{rank}.npy",
              Scope::job},
             {"--output", cli::file(options.output), "where each rank's result goes"}});
  add_loss_budget_options(table, options.budgets);
  add_report_options(table, options);
  add_all_fault_options(table, options);
  add_mechanism_options(table, options.mechanisms);
  add_nccl_flags(table);
}

/// Adds rows, not shown in the help, that refuse the options of `tarpon all_reduce` that `table`
/// does not have.
void refuse_allreduce_options(cli::OptionTable& table, const std::string& command) {
  cli::OptionTable full;
  CollectiveOptions unused;
  add_allreduce_options(full, unused);
  full.each([&](cli::Option row) {
    if (table.find(cli::names_of(row).front()) != nullptr) return;
    row.value.read = [command](const std::string&) -> Result<void> {
      return fail(
          Error::Code::invalid_argument,
          fmt::format("tarpon {} has no such option: leave it out, or run tarpon all_reduce",
                      command));
    };
    row.excludes.clear();
    table.add("", {std::move(row)});
  });
}

/// The options of a command other than `tarpon all_reduce`.
void add_other_options(cli::OptionTable& table, CollectiveOptions& options) {
  const MeasuredCollective& row = *options.row;
  if (row.divided) {
    table.note(
        "Sizes (-b, -e) are those of the parts of all ranks together, as in nccl-tests; the "
        "column count has the elements of one part.");
  }
  if (!row.has_in_place()) {
    table.note("There are no calls in place, as in nccl-tests: the table has N/A there.");
  }
  add_job_options(table, options.job);
  if (reduces(row.collective)) table.add(kCallGroup, {function_option(options)});
  if (options.may_be_bounded()) add_bound_options(table, options);
  if (has_root(row.collective)) table.add(kCallGroup, {root_option(options)});
  add_benchmark_options(table, options);
  add_report_options(table, options);
  add_all_fault_options(table, options);
  add_nccl_flags(table);
  refuse_allreduce_options(table, row.command);
}

}  // namespace

void add_collective_options(cli::OptionTable& table, CollectiveOptions& options) {
  if (options.of_allreduce()) {
    add_allreduce_options(table, options);
  } else {
    add_other_options(table, options);
  }
}

std::string against_hosts(const CollectiveOptions& options, const std::string& hosts) {
  if (!options.of_allreduce()) {
    // Other hosts have different numbers of ranks.
    const bool even = hosts.find(" on one host") != std::string::npos ||
                      hosts.find(" each)") != std::string::npos;
    const bool by_memory =
        even && !is_message(options.row->collective) && options.mode == Mode::exact;
    return by_memory ? "" : fmt::format("{} goes over the network", options.row->command);
  }
  if (options.mode == Mode::bounded &&
      (options.bound.given || options.bound.rule == BoundRule::optireduce)) {
    return "bounded calls go over the network, unless their bound is learnt";
  }
  if (options.algorithm != Algorithm::automatic && options.algorithm != Algorithm::hosts) {
    return fmt::format("algorithm {} goes over the network", name(options.algorithm));
  }
  const bool shares = options.learn_shares || !options.shares.even();
  return shares ? "calls with shares go over the network" : "";
}

std::string shares_text(const Shares& shares) {
  if (shares.even()) return "even";
  std::string text;
  for (Rank rank = 0; rank < shares.ranks(); ++rank) {
    text += fmt::format("{}{:.4f}", rank == 0 ? "" : ",",
                        static_cast<double>(shares.part(rank)) / Shares::kWhole);
  }
  return text;
}

namespace {

/// Each rank's part of Shares::kWhole. shares_text() rounds these numbers.
std::string exact_parts(const Shares& shares) {
  std::string text = "even";
  for (Rank rank = 0; rank < shares.ranks(); ++rank) {
    if (rank == 0) text.clear();
    fmt::format_to(std::back_inserter(text), "{}{}", rank == 0 ? "" : ",", shares.part(rank));
  }
  return text;
}

}  // namespace

std::string agreed_options(const CollectiveOptions& options) {
  std::string text = fmt::format(
      "command={}\nop={}\nroot={}\nmode={}\nalgorithm={}\ngroup_size={}\nlate_rank={}\nshares={}"
      "\nmissing={}"
      "\niters={}"
      "\nwarmup={}"
      "\nrun_cycles={}"
      "\ncheck={}\n"
      "form={}\nbound={}\nmechanisms={}\n",
      options.row->command, options.all_functions ? "all" : name(options.kind.function),
      options.all_roots ? "all" : std::to_string(options.kind.root), name(options.mode),
      name(options.algorithm), options.group_size, options.late_rank.value_or(0),
      options.learn_shares ? "auto" : exact_parts(options.shares),
      options.missing == MissingFill::zero ? "zero" : "local", options.iterations, options.warmup,
      options.run_cycles, options.check ? 1 : 0, options.file_form() ? "file" : "benchmark",
      bound_rule(options.bound), describe(options.job.mechanisms));
  if (!options.file_form()) {
    text += fmt::format("datatype={}\nminbytes={}\nmaxbytes={}\nstepbytes={}\nstepfactor={}\n",
                        options.all_types ? "all" : name(options.kind.type), options.min_bytes,
                        options.max_bytes, options.step_bytes, options.step_factor);
  }
  return text;
}

AllreduceArguments allreduce_arguments(const CollectiveOptions& options, const void* input,
                                       void* output, std::uint64_t count) {
  AllreduceArguments arguments;
  arguments.input = input;
  arguments.output = output;
  arguments.count = count;
  arguments.type = options.kind.type;
  arguments.function = options.kind.function;
  arguments.mode = options.mode;
  arguments.algorithm = options.algorithm;
  arguments.group_size = options.group_size;
  arguments.late_rank = options.late_rank.value_or(0);
  arguments.shares = options.shares;
  arguments.learn_shares = options.learn_shares;
  arguments.deadline = options.job.deadline;
  arguments.bound_rule = options.bound.rule;
  arguments.bound = options.bound.given;
  arguments.missing = options.missing;
  return arguments;
}

CollectiveArguments collective_arguments(const CollectiveOptions& options, const void* input,
                                         void* output, std::uint64_t count) {
  CollectiveArguments arguments;
  arguments.collective = options.row->collective;
  arguments.input = input;
  arguments.output = output;
  arguments.count = count;
  arguments.root = options.kind.root;
  arguments.type = options.kind.type;
  arguments.function = options.kind.function;
  arguments.mode = options.mode;
  arguments.bound = options.bound.given;
  arguments.deadline = options.job.deadline;
  return arguments;
}

}  // namespace tarpon
