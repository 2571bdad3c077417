// The options of the commands that run a collective: `tarpon all_reduce` and the others.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/command.h"
#include "tools/collective/measured_collective.h"
#include "tools/collective/result_table.h"
#include "tools/job/options/job_options.h"
#include "tools/job/options/loss_budget_options.h"
#include "tools/job/options/mechanism_options.h"

namespace tarpon {

/// Defaults of --iters and --warmup_iters with --input.
inline constexpr std::uint32_t kFileIterations = 1, kFileWarmup = 0;

/// --bound.
struct BoundOption {
  BoundRule rule = BoundRule::automatic;
  std::optional<Duration> given;
};

/// For the report: "learnt", "learnt, at most 20ms", "optireduce", or the duration that was given.
std::string bound_rule(const BoundOption& bound);

/// Delays one rank: it makes each call `by` after the barrier before it.
struct InjectedDelay {
  Rank rank = 0;
  Duration by{};
};

/// What one sweep measures.
struct SweepKind {
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;  // of collectives that reduce
  Rank root = 0;                      // of collectives that have one
};

struct CollectiveOptions {
  const MeasuredCollective* row = &row_of(Collective::allreduce);
  JobOptions job;
  // Benchmark form, named as in nccl-tests.
  std::uint64_t min_bytes = 32ull << 20;
  std::uint64_t max_bytes = 32ull << 20;
  std::uint64_t step_bytes = 1ull << 20;
  std::uint32_t step_factor = 1;  // > 1: multiply instead of adding step_bytes
  std::uint32_t iterations = 20;
  std::uint32_t warmup = 5;
  std::uint32_t run_cycles = 1;
  bool check = true;
  // Of the call; with `-d all`, `-o all` and `-r all`, of the current sweep (kinds_of()).
  SweepKind kind;
  bool all_types = false;
  bool all_functions = false;
  bool all_roots = false;
  std::optional<InjectedDelay> delay;
  std::string json;
  std::optional<TableShape> columns;  // else default_shape()
  // Of AllReduce alone, from here on. File form.
  std::string input;   // path with {rank}
  std::string output;  // path with {rank}; may be empty
  // Both forms.
  Mode mode = Mode::exact;
  BoundOption bound;
  std::optional<double> loss_target;  // share; else Mechanisms::loss_target
  Algorithm algorithm = Algorithm::automatic;
  std::uint32_t group_size = 0;  // 0: the library's choice
  std::optional<Rank> late_rank;
  Shares shares;
  bool learn_shares = false;
  std::string shares_flag = "--shares";  // that gave them
  std::optional<bool> rotation;          // --order
  MissingFill missing = MissingFill::zero;
  MechanismOptions mechanisms;
  LossBudgetOptions budgets;

  bool of_allreduce() const { return row->collective == Collective::allreduce; }
  bool may_be_bounded() const {
    return of_allreduce() || row->collective == Collective::reduce_scatter ||
           row->collective == Collective::all_gather;
  }
  bool file_form() const { return !input.empty(); }
};

/// Why these calls do not use the memory that ranks of a host share; empty: they do.
std::string against_hosts(const CollectiveOptions& options, const std::string& hosts);

/// The kinds that the benchmark form measures, one sweep each. `all` stands for those that are
/// defined.
std::vector<SweepKind> kinds_of(const CollectiveOptions& options, std::uint32_t ranks);

/// The options of the command of `options.row`. Options of AllReduce that the row does not have are
/// there too, not shown in the help, and refuse to be given.
void add_collective_options(cli::OptionTable& table, CollectiveOptions& options);

/// Call after parsing. Settles what a profile stands for; for the file form applies its own
/// defaults and refuses options that only a sweep has.
Result<void> settle_form(const cli::Invocation& invocation, CollectiveOptions& options);

Result<void> check_collective_options(const CollectiveOptions& options);

/// Checks that paths contain {rank} if there are several ranks, since each has its own files. A
/// separate function, because only the launcher may know the number of ranks.
Result<void> check_paths(const CollectiveOptions& options, std::uint32_t world);

/// "even", or each rank's part of 1: "0.1429,0.2857,0.2857,0.2857".
std::string shares_text(const Shares& shares);

/// The options that all ranks must have alike, as "name=value" lines.
std::string agreed_options(const CollectiveOptions& options);

/// The share that bounded calls may lose on average; nullopt where the bound is given, or comes
/// from BoundRule::optireduce.
std::optional<double> loss_target(const CollectiveOptions& options);

/// A bound that does not adapt; nullopt for exact calls and other bounds.
std::optional<double> given_bound_us(const CollectiveOptions& options);

/// The arguments of one call on these buffers. REQUIRES: the row of AllReduce.
AllreduceArguments allreduce_arguments(const CollectiveOptions& options, const void* input,
                                       void* output, std::uint64_t count);
/// The same, of the other rows; of a message without its peer.
CollectiveArguments collective_arguments(const CollectiveOptions& options, const void* input,
                                         void* output, std::uint64_t count);

/// A command for each row of measured_collectives(), and `allreduce`, which is `all_reduce`.
std::vector<cli::Command> collective_commands();

}  // namespace tarpon
