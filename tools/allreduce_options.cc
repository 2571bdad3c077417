#include "tools/allreduce_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/environment_options.h"
#include "tools/nccl_flags.h"
#include "tools/option_kinds.h"
#include "tools/units.h"

namespace tarpon {
namespace {

/// Adds an option whose values have names, in lower or upper case. `names` lists them for humans.
template <typename T>
CLI::Option* add_named(CLI::App& app, const std::string& name, T& target,
                       std::optional<T> (*parse)(std::string_view), const std::string& names,
                       const std::string& description) {
  const auto take = [&target, parse, names, name](const std::string& text) {
    const std::optional<T> value = parse(CLI::detail::to_lower(text));
    if (!value) throw CLI::ValidationError(name, '"' + text + "\" is not one of " + names);
    target = *value;
  };
  return app.add_option_function<std::string>(name, take, description)->type_name("");
}

/// The same, or `all`.
template <typename T>
CLI::Option* add_named_or_all(CLI::App& app, const std::string& name, T& target, bool& all,
                              std::optional<T> (*parse)(std::string_view), const std::string& names,
                              const std::string& description) {
  const auto take = [&target, &all, parse, names, name](const std::string& text) {
    const std::string lower = CLI::detail::to_lower(text);
    const std::optional<T> value = parse(lower);
    all = lower == "all";
    if (value) target = *value;
    if (!value && !all) {
      throw CLI::ValidationError(name, '"' + text + "\" is not one of " + names + ", all");
    }
  };
  return app.add_option_function<std::string>(name, take, description)->type_name("");
}

constexpr const char* kDataTypeChoices =
    "float, double, half, bfloat16, int8, uint8, int16, uint16, int32, uint32, int64, uint64";
constexpr const char* kFunctionChoices = "sum, avg, min, max, prod, band, bor, bxor";

/// The tool has no function of its own.
std::optional<ReduceOp> parse_tool_function(std::string_view text) {
  const std::optional<ReduceOp> function = parse_reduce_op(text);
  return function == ReduceOp::custom ? std::nullopt : function;
}

void add_benchmark_options(CLI::App& app, AllreduceOptions& options) {
  const std::string group = "Benchmark form (as nccl-tests)";
  add_parsed(app, "-b,--minbytes", options.min_bytes, parse_bytes,
             "smallest size (32M); K, M, G and T are powers of 1024, here and elsewhere")
      ->group(group);
  add_parsed(app, "-e,--maxbytes", options.max_bytes, parse_bytes, "largest size (32M)")
      ->group(group);
  add_parsed(app, "-i,--stepbytes", options.step_bytes, parse_bytes, "from size to size (1M)")
      ->group(group);
  app.add_option("-f,--stepfactor", options.step_factor, "multiply instead of adding -i")
      ->check(at_least_one())
      ->group(group);
  app.add_option("-n,--iters", options.iterations, "timed iterations (20; file form: 1)")
      ->check(at_least_one())
      ->group(group);
  app.add_option("-w,--warmup_iters", options.warmup, "iterations before them (5; file form: 0)")
      ->group(group);
  app.add_option("-c,--check", options.check, "check the result of the last iteration (1)")
      ->group(group);
  app.add_option("-N,--run_cycles", options.run_cycles, "repeat everything (1)")
      ->check(at_least_one())
      ->group(group);
  add_named_or_all(app, "-d,--datatype", options.type, options.all_types, parse_data_type,
                   kDataTypeChoices,
                   "float, double, half, bfloat16, int8, uint8, ... uint64, or all of them")
      ->default_str("float")
      ->group(group);
  app.add_option_function<std::uint32_t>(
         "-T,--timeout",
         [&options](const std::uint32_t& seconds) {
           options.job.deadline = std::chrono::seconds(seconds);
           options.job.deadline_given = true;
         },
         "deadline in seconds, as --deadline")
      ->check(at_least_one())
      ->group(group);
}

Result<BoundOption> parse_bound(const std::string& text) {
  if (text == "optireduce") return BoundOption{BoundRule::optireduce, std::nullopt};
  auto given = parse_limit(text);
  if (!given) {
    return fail(given.error().code, given.error().message + ", or optireduce");
  }
  return BoundOption{BoundRule::automatic, *given};
}

/// Exact calls lose nothing: what says what to do about losses would have no effect.
Result<void> check_bounded_only(const CLI::App& app, const AllreduceOptions& options) {
  if (options.mode == Mode::bounded) return {};
  std::string flag;
  for (const char* one : {"--bound", "--loss-target", "--missing", "--rescale", "--codec"}) {
    if (app.count(one) > 0) flag = one;
  }
  for (const std::string& word : options.mechanisms.without) {
    if (word != "rotation") flag = "--without " + word;
  }
  if (flag.empty()) return {};
  return fail(Error::Code::invalid_argument, flag + " needs --mode bounded");
}

}  // namespace

std::string bound_rule(const BoundOption& bound) {
  if (bound.rule == BoundRule::optireduce) return "optireduce";
  if (!bound.given) return "learnt";
  const std::string limit = format_duration(*bound.given);
  return bound.rule == BoundRule::learnt ? "learnt, at most " + limit : limit;
}

std::optional<double> loss_target(const AllreduceOptions& options) {
  const BoundOption& bound = options.bound;
  const bool learnt =
      bound.rule == BoundRule::learnt || (bound.rule == BoundRule::automatic && !bound.given);
  return learnt ? std::optional(options.job.mechanisms.loss_target) : std::nullopt;
}

std::vector<ElementKind> kinds_of(const AllreduceOptions& options) {
  std::vector<ElementKind> kinds;
  for (std::size_t t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    if (!options.all_types && type != options.type) continue;
    for (std::size_t f = 0; f < kReduceOps; ++f) {
      const auto function = static_cast<ReduceOp>(f);
      if (!options.all_functions && function != options.function) continue;
      if (function != ReduceOp::custom && is_defined(type, function)) {
        kinds.push_back({type, function});
      }
    }
  }
  return kinds;
}

std::optional<double> given_bound_us(const AllreduceOptions& options) {
  const BoundOption& bound = options.bound;
  if (options.mode != Mode::bounded || bound.rule != BoundRule::automatic || !bound.given) {
    return std::nullopt;
  }
  return std::chrono::duration<double, std::micro>(*bound.given).count();
}

void add_allreduce_options(CLI::App& app, AllreduceOptions& options) {
  add_job_options(app, options.job);
  add_benchmark_options(app, options);
  add_nccl_flags(app);
  app.add_option("--input", options.input, "file form: .npy of each rank, as dir/rank{rank}.npy");
  app.add_option("--output", options.output, "file form: where each rank's result goes");
  add_named_or_all(app, "-o,--op", options.function, options.all_functions, parse_tool_function,
                   kFunctionChoices, "sum, avg, min, max, prod, band, bor, bxor, or all of them")
      ->default_str("sum");
  add_named(app, "--mode", options.mode, parse_mode, "exact, bounded",
            "exact: repaired until complete; bounded: ends by its bound with what has arrived")
      ->default_str("exact");
  add_parsed(app, "--bound", options.bound, parse_bound,
             "bounded mode: time of the whole call, or optireduce (95th percentile of 20 exact "
             "operations); else learnt. With --loss-target: the longest that is learnt");
  add_parsed(app, "--loss-target", options.loss_target, parse_probability,
             "bounded mode: the bound is the shortest that loses this share on average (0.1%)");
  add_named(app, "--order", options.order, parse_addition_order, "fixed, any",
            "order of addition in exact mode: fixed (the same bits on every run) or any")
      ->default_str("fixed");
  add_choice(app, "--missing", options.missing,
             std::map<std::string, MissingFill>{{"zero", MissingFill::zero},
                                                {"local", MissingFill::local}},
             "bounded mode: what fills a hole: zero, or local (this rank's own contribution)")
      ->default_str("zero");
  add_parsed(app, "--columns", options.columns, parse_columns,
             "of the table: out, in (time, algbw, busbw, #wrong of either place), p50, p99, max, "
             "lost, late (of in-place calls); (out,in,max; bounded: out,in,lost)");
  add_mechanism_options(app, options.mechanisms);
  add_loss_budget_options(app, options.budgets);
  app.add_option(
      "--flight", options.job.flight,
      "directory for flight recordings: after every status but complete, on SIGUSR1 to a "
      "rank and when a signal ends it (TARPON_FLIGHT; else none); tarpon flight reads them");
  app.add_option("-J,--json", options.json,
                 "write the results to this file (rank 0); - is standard output, the table then "
                 "goes to standard error");
}

Result<void> settle_form(const CLI::App& app, AllreduceOptions& options) {
  auto mechanisms = options.mechanisms.settle();
  if (!mechanisms) return fail(mechanisms.error());
  options.job.mechanisms = *mechanisms;
  if (options.loss_target) {
    if (*options.loss_target <= 0 || *options.loss_target >= 1) {
      return fail(Error::Code::invalid_argument,
                  fmt::format("--loss-target {:g}%: give a share above 0% and below 100%, such as "
                              "0.1%; calls that may lose nothing need --mode exact",
                              *options.loss_target * 100));
    }
    options.job.mechanisms.loss_target = *options.loss_target;
    if (options.bound.rule == BoundRule::optireduce) {
      return fail(Error::Code::invalid_argument,
                  "--loss-target and --bound optireduce: leave one out");
    }
    options.bound.rule = BoundRule::learnt;
  } else if (!options.mechanisms.optireduce) {
    const auto settings = read_settings(process_environment());
    if (!settings) return fail(settings.error());
    options.job.mechanisms.loss_target =
        settings->loss_target.value_or(options.job.mechanisms.loss_target);
  }
  if (auto sensible = check_bounded_only(app, options); !sensible) return sensible;
  auto budgets = options.budgets.settle();
  if (!budgets) return fail(budgets.error());
  options.job.loss_budgets = std::move(*budgets);
  if (options.mechanisms.optireduce && options.mode == Mode::bounded && app.count("--bound") == 0 &&
      !options.loss_target) {
    options.bound.rule = BoundRule::optireduce;
  }
  if (!options.file_form()) return {};
  for (const char* flag : {"-b", "-e", "-i", "-f", "-N", "-d"}) {
    if (app.count(flag) == 0) continue;
    return fail(Error::Code::invalid_argument,
                fmt::format("{} is of the benchmark form: with --input the files say how much of "
                            "which type; leave it out",
                            flag));
  }
  if (app.count("--iters") == 0) options.iterations = 1;
  if (app.count("--warmup_iters") == 0) options.warmup = 0;
  return {};
}

Result<void> check_allreduce_options(const AllreduceOptions& options) {
  if (auto job = check_job_options(options.job); !job) return job;
  const auto refuse = [](std::string text) {
    return fail(Error::Code::invalid_argument, std::move(text));
  };
  if (options.min_bytes > options.max_bytes) {
    return refuse(fmt::format("-b {} is above -e {}: give a size range that is not empty",
                              format_bytes(options.min_bytes), format_bytes(options.max_bytes)));
  }
  if (options.step_factor == 1 && options.step_bytes == 0 &&
      options.min_bytes != options.max_bytes) {
    return refuse("-i 0 never reaches -e: give a step above 0, or -f 2");
  }
  if (options.step_factor > 1 && options.min_bytes == 0) {
    return refuse("-b 0 with -f never grows: start at 1 byte or more");
  }
  if (!options.output.empty() && options.input.empty()) {
    return refuse("--output needs --input: the arrays to reduce");
  }
  const std::uint32_t local = std::max(1u, options.job.local_ranks);
  if (auto paths = check_paths(options, local); !paths) return paths;
  if (!options.job.loss_budgets.empty() && options.mode != Mode::bounded) {
    return refuse("a loss budget needs --mode bounded: exact calls lose nothing");
  }
  if (options.file_form() && options.all_functions) {
    return refuse("-o all is of the benchmark form: with --input choose one function");
  }
  if (!options.file_form() && kinds_of(options).empty()) {
    return refuse(fmt::format("-o {} needs integers: choose -d int8, int32, uint64, ... or all",
                              name(options.function)));
  }
  if (options.file_form() && is_bitwise(options.function)) {
    return refuse(fmt::format("-o {} needs integers: --input takes arrays of floats",
                              name(options.function)));
  }
  const bool one_kind = !options.all_types && !options.all_functions;
  const bool coded = one_kind && can_be_bounded(options.type, options.function) &&
                     (options.file_form() || options.type == DataType::float32);
  if (options.mechanisms.codec == CodecRule::on && !coded) {
    return refuse("--codec on needs -d float and -o sum or avg: nothing else is coded");
  }
  return {};
}

Result<void> check_paths(const AllreduceOptions& options, std::uint32_t world) {
  for (const auto& [flag, path] :
       {std::pair("--input", options.input), std::pair("--output", options.output)}) {
    if (!path.empty() && world > 1 && path.find("{rank}") == std::string::npos) {
      return fail(Error::Code::invalid_argument,
                  fmt::format("{} {}: put {{rank}} where the rank's number belongs", flag, path));
    }
  }
  return {};
}

std::string agreed_options(const AllreduceOptions& options) {
  std::string text = fmt::format(
      "command=allreduce\nop={}\nmode={}\norder={}\nmissing={}\niters={}\nwarmup={}\nrun_cycles={}"
      "\ncheck={}\n"
      "form={}\nbound={}\nmechanisms={}\n",
      options.all_functions ? "all" : name(options.function), name(options.mode),
      name(options.order), options.missing == MissingFill::zero ? "zero" : "local",
      options.iterations, options.warmup, options.run_cycles, options.check ? 1 : 0,
      options.file_form() ? "file" : "benchmark", bound_rule(options.bound),
      describe(options.job.mechanisms));
  if (!options.file_form()) {
    text += fmt::format("datatype={}\nminbytes={}\nmaxbytes={}\nstepbytes={}\nstepfactor={}\n",
                        options.all_types ? "all" : name(options.type), options.min_bytes,
                        options.max_bytes, options.step_bytes, options.step_factor);
  }
  return text;
}

AllreduceArguments call_arguments(const AllreduceOptions& options, const void* input, void* output,
                                  std::uint64_t count) {
  AllreduceArguments arguments;
  arguments.input = input;
  arguments.output = output;
  arguments.count = count;
  arguments.type = options.type;
  arguments.function = options.function;
  arguments.mode = options.mode;
  arguments.order = options.order;
  arguments.deadline = options.job.deadline;
  arguments.bound_rule = options.bound.rule;
  arguments.bound = options.bound.given;
  arguments.missing = options.missing;
  return arguments;
}

}  // namespace tarpon
