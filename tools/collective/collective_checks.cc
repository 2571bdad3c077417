// Checks which options of a collective go together, and derives options from other ones.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "collectives/environment/environment_options.h"
#include "tools/cli/units.h"
#include "tools/collective/collective_options.h"

namespace tarpon {
namespace {

/// Refuses options that only bounded calls use. Exact calls lose nothing, so an option about losses
/// would have no effect.
Result<void> check_bounded_only(const cli::Invocation& invocation,
                                const CollectiveOptions& options) {
  if (options.mode == Mode::bounded) return {};
  std::string flag;
  for (const char* one : {"--bound", "--loss-target", "--missing", "--rescale", "--codec"}) {
    if (invocation.given(one)) flag = one;
  }
  for (const std::string& word : options.mechanisms.without) flag = "--without " + word;
  if (flag.empty()) return {};
  return fail(Error::Code::invalid_argument, flag + " needs --mode bounded");
}

/// Takes order, loss target and codec from the environment variables, where no option sets them.
Result<void> add_environment(CollectiveOptions& options) {
  const auto settings = read_settings(process_environment());
  if (!settings) return fail(settings.error());
  Mechanisms& mechanisms = options.job.mechanisms;
  mechanisms.rotation = options.rotation.value_or(settings->rotation.value_or(true));
  if (options.mechanisms.optireduce) return {};
  if (!options.loss_target) {
    mechanisms.loss_target = settings->loss_target.value_or(mechanisms.loss_target);
  }
  if (!options.mechanisms.codec) mechanisms.codec = settings->codec.value_or(mechanisms.codec);
  return {};
}

}  // namespace

Result<void> settle_form(const cli::Invocation& invocation, CollectiveOptions& options) {
  options.job.mechanisms = options.mechanisms.settle();
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
  }
  if (auto added = add_environment(options); !added) return added;
  if (auto sensible = check_bounded_only(invocation, options); !sensible) return sensible;
  auto budgets = options.budgets.settle();
  if (!budgets) return fail(budgets.error());
  options.job.loss_budgets = std::move(*budgets);
  if (options.mechanisms.optireduce && options.mode == Mode::bounded &&
      !invocation.given("--bound") && !options.loss_target) {
    options.bound.rule = BoundRule::optireduce;
  }
  if (!options.file_form()) return {};
  for (const char* flag : {"-b", "-e", "-i", "-f", "-N", "-d"}) {
    if (!invocation.given(flag)) continue;
    return fail(Error::Code::invalid_argument,
                fmt::format("{} is of the benchmark form: with --input the files say how much of "
                            "which type; leave it out",
                            flag));
  }
  if (!invocation.given("--iters")) options.iterations = kFileIterations;
  if (!invocation.given("--warmup_iters")) options.warmup = kFileWarmup;
  return {};
}

Result<void> check_collective_options(const CollectiveOptions& options) {
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
  const double deadline_us =
      std::chrono::duration<double, std::micro>(options.job.deadline).count();
  if (const auto bound_us = given_bound_us(options); bound_us && *bound_us > deadline_us) {
    return refuse("--bound " + bound_rule(options.bound) + " is above --deadline " +
                  format_duration(options.job.deadline) + ": raise --deadline");
  }
  const bool transposes =
      options.algorithm == Algorithm::tar || options.algorithm == Algorithm::automatic;
  if (!transposes && options.mode == Mode::bounded) {
    return refuse(
        fmt::format("--algorithm {} works with exact calls only: leave out --mode bounded",
                    name(options.algorithm)));
  }
  if (options.group_size != 0 && options.algorithm != Algorithm::two_level_tar) {
    return refuse("--group-size works with --algorithm 2d-tar only: leave one out, or give both");
  }
  if (options.late_rank && options.algorithm != Algorithm::late_rank) {
    return refuse("--late-rank works with --algorithm late-rank only: leave one out, or give both");
  }
  const bool even = options.shares.even() && !options.learn_shares;
  if (!even && !transposes) {
    return refuse(fmt::format("{} works with --algorithm tar only: leave out --algorithm {}",
                              options.shares_flag, name(options.algorithm)));
  }
  if (options.mode == Mode::bounded && options.learn_shares) {
    return refuse(
        "--shares auto works with exact calls only: give a list of weights, or leave out --mode "
        "bounded");
  }
  if (options.mode == Mode::bounded && !even && options.job.mechanisms.codec == CodecRule::on) {
    return refuse(options.shares_flag +
                  " changes no coded call, whose shares are even: give --codec off or auto");
  }
  if (options.learn_shares && !options.job.mechanisms.rotation) {
    return refuse(
        "--shares auto changes the order of addition: leave it out, or give --order "
        "rotating");
  }
  if (!options.job.loss_budgets.empty() && options.mode != Mode::bounded) {
    return refuse("a loss budget needs --mode bounded: exact calls lose nothing");
  }
  if (options.file_form() && options.all_functions) {
    return refuse("-o all is of the benchmark form: with --input choose one function");
  }
  if (!options.file_form() && kinds_of(options, 1).empty()) {
    return refuse(fmt::format("-o {} needs integers: choose -d int8, int32, uint64, ... or all",
                              name(options.kind.function)));
  }
  if (options.file_form() && is_bitwise(options.kind.function)) {
    return refuse(fmt::format("-o {} needs integers: --input takes arrays of floats",
                              name(options.kind.function)));
  }
  const bool one_kind = !options.all_types && !options.all_functions;
  const bool coded = one_kind && can_be_bounded(options.kind.type, options.kind.function) &&
                     (options.file_form() || options.kind.type == DataType::float32);
  if (options.mechanisms.codec == CodecRule::on && !coded) {
    return refuse("--codec on needs -d float and -o sum or avg: nothing else is coded");
  }
  return {};
}

Result<void> check_paths(const CollectiveOptions& options, std::uint32_t world) {
  for (const auto& [flag, path] :
       {std::pair("--input", options.input), std::pair("--output", options.output)}) {
    if (!path.empty() && world > 1 && path.find("{rank}") == std::string::npos) {
      return fail(Error::Code::invalid_argument,
                  fmt::format("{} {}: put {{rank}} where the rank's number belongs", flag, path));
    }
  }
  return {};
}

}  // namespace tarpon
