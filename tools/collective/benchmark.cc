#include "tools/collective/benchmark.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "tools/cli/exit_code.h"
#include "tools/cli/files/report_output.h"
#include "tools/cli/interruption.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/units.h"
#include "tools/cli/wrapped_text.h"
#include "tools/collective/pattern_buffers.h"
#include "tools/collective/result_table.h"
#include "tools/collective/slow_calls.h"
#include "tools/collective/timed_calls.h"
#include "tools/collective/work_estimate.h"
#include "tools/job/datapath_text.h"
#include "tools/job/host_trouble.h"
#include "tools/job/joint_outcome.h"
#include "tools/job/rank_names.h"
#include "tools/version.h"

namespace tarpon {
namespace {

/// The size after `size`, if that is not the last one.
std::optional<std::uint64_t> next_size(const CollectiveOptions& options, std::uint64_t size) {
  if (options.step_factor > 1) {
    if (size > options.max_bytes / options.step_factor) return std::nullopt;
    return size * options.step_factor;
  }
  if (options.step_bytes == 0 || options.step_bytes > options.max_bytes - size) return std::nullopt;
  return size + options.step_bytes;
}

/// How many measurements there are of a size: out of place and, if the row has it, in place.
std::size_t places_of(const CollectiveOptions& options) {
  return options.row->has_in_place() ? 2 : 1;
}

/// Sizes of all measurements in their order: each size for each place, for every kind, in every
/// cycle.
std::vector<std::uint64_t> items_of(const CollectiveOptions& options, std::size_t kinds) {
  constexpr std::size_t kMost = 100'000;  // enough for an estimate
  std::vector<std::uint64_t> sizes;
  const std::size_t sweeps = options.run_cycles * kinds;
  for (std::size_t sweep = 0; sweep < sweeps && sizes.size() < kMost; ++sweep) {
    for (std::optional size = options.min_bytes; size && sizes.size() < kMost;
         size = next_size(options, *size)) {
      sizes.insert(sizes.end(), places_of(options), *size);
    }
  }
  return sizes;
}

/// Work before each item, and at the end all work, in bytes; a call's latency counts as kCall
/// bytes.
std::vector<double> work_before(const std::vector<std::uint64_t>& sizes) {
  constexpr double kCall = 256 << 10;
  std::vector<double> work{0};
  for (const std::uint64_t size : sizes)
    work.push_back(work.back() + kCall + static_cast<double>(size));
  return work;
}

class Benchmark {
 public:
  Benchmark(const CollectiveOptions& options, Session& session)
      : given_(options),
        options_(options),
        session_(session),
        communicator_(*session.communicator),
        kinds_(kinds_of(options, communicator_.world_size())),
        first_(communicator_.rank() == 0),
        text_(options.job.text),
        shape_(options.columns.value_or(default_shape(options.mode))),
        progress_(first_, session.place.progress_fd),
        items_(items_of(options, kinds_.size())),
        work_before_(work_before(items_)),
        buffers_(*options.row, communicator_.rank(), communicator_.world_size()),
        estimate_(items_, options.iterations + options.warmup) {}

  int run() {
    if (auto ready = agree(communicator_.control(), prepare()); !ready) {
      return give_up(ready.error());
    }
    print_head();
    if (first_) interruption_.emplace([this] { last_words(); });
    for (std::uint32_t cycle = 0; cycle < options_.run_cycles; ++cycle) {
      for (const SweepKind& kind : kinds_) {
        options_.kind = kind;
        if (auto swept = sweep(); !swept) return give_up(swept.error());
        if (!halted_.empty()) return finish();
      }
    }
    return finish();
  }

 private:
  /// Does what can fail on one rank alone, before anything is measured.
  Result<void> prepare() {
    try {
      buffers_.allocate(options_.max_bytes, kinds_, diverges());
    } catch (const std::exception&) {  // bad_alloc, length_error
      return fail(Error::Code::unavailable,
                  fmt::format("no memory for {} buffers of {}: choose a smaller -e",
                              diverges() ? 3 : 2, format_bytes(options_.max_bytes)));
    }
    return first_ ? check_json(options_.json) : Result<void>();
  }

  /// Whether ranks may get different results of one call.
  bool diverges() const { return options_.mode == Mode::bounded && options_.of_allreduce(); }

  /// All sizes of one kind; fewer where the job halts.
  Result<void> sweep() {
    for (std::optional size = options_.min_bytes; size; size = next_size(options_, *size)) {
      const auto out = measure(*size, false);
      if (!out) return fail(out.error());
      std::optional<Measurement> in;
      if (halted_.empty() && options_.row->has_in_place()) {
        auto measured = measure(*size, true);
        if (!measured) return fail(measured.error());
        in = std::move(*measured);
      }
      print_row(*out, in);
      if (!halted_.empty()) return {};
    }
    return {};
  }

  Result<Measurement> measure(std::uint64_t size, bool in_place) {
    buffers_.begin(options_.kind, size, in_place);
    {
      const std::lock_guard lock(mutex_);
      partial_ = {buffers_.size(), in_place, {}};
    }
    TimedCalls calls = timed_calls(
        fmt::format("{} {}", format_bytes(size), in_place ? "in place" : "out of place"));
    Report last;
    const IterationLog log =
        run_timed(calls, buffers_.input(), buffers_.output(), buffers_.count(), last);
    nlohmann::json failure;
    auto logs = share_logs(communicator_.control(), log, options_.job.deadline, failure);
    if (!logs) {
      const std::lock_guard lock(mutex_);
      failure_ = std::move(failure);
      return fail(logs.error());
    }
    halted_ = log.halted;
    Measurement result = measurement_of(*logs, last);
    result.in_place = in_place;
    if (diverges() && last.mode == Mode::bounded && halted_.empty() &&
        communicator_.world_size() > 1) {
      result.divergence = buffers_.divergence(communicator_, options_.job.deadline);
    }
    remember(result);
    return result;
  }

  /// `what`: the calls, for the progress line.
  TimedCalls timed_calls(const std::string& what) {
    TimedCalls calls{
        options_, communicator_, session_.log, options_.iterations, options_.warmup, {}, {}, {},
        {}};
    calls.refill = [this] { buffers_.refill(); };
    if (options_.check) {
      calls.check = [this](const Report& report) {
        return buffers_.check(report, options_.missing);
      };
    }
    if (!options_.job.loss_budgets.empty()) calls.step = &next_step_;
    calls.progress = [this, what](std::uint32_t done, double us) {
      const std::lock_guard lock(mutex_);
      if (done > options_.warmup) partial_.time_us.push_back(us);
      estimate_.update(done, progress_.elapsed());
      progress_.update(share_done(done), estimate_.left(), what);
    };
    return calls;
  }

  /// `last`: the report of the last call.
  Measurement measurement_of(const std::vector<IterationLog>& logs, const Report& last) const {
    Measurement result;
    result.collective = options_.row->collective;
    result.count = buffers_.count();
    result.size = buffers_.size();
    result.type = options_.kind.type;
    result.function = options_.kind.function;
    result.root = options_.kind.root;
    result.asked_mode = options_.mode;
    result.checked = options_.check && knows_losses(last);
    result.given_bound_us = given_bound_us(options_);
    result.datapath = datapath_of(communicator_);
    result.mode = last.mode;
    result.algorithm = last.algorithm;
    result.bound_rule = bound_rule(options_.bound);
    result.loss_target = loss_target(options_);
    merge(logs, result);
    if (diverges() && last.mode == Mode::bounded && options_.check) {
      result.squared_error = 0;
      for (const IterationLog& one : logs) {
        result.squared_error = std::max(*result.squared_error, one.squared_error);
      }
    }
    return result;
  }

  /// Whether the report says of each element what it lacks.
  static bool knows_losses(const Report& report) {
    return report.host_of == nullptr || report.mode == Mode::exact;
  }

  void remember(const Measurement& result) {
    const std::uint32_t world = communicator_.world_size();
    const std::lock_guard lock(mutex_);
    estimate_.finish_item(progress_.elapsed());
    partial_.time_us.clear();
    wrong_ += result.wrong;
    checked_ = checked_ && result.checked;
    busbw_ += result.busbw(result.mean_us(), world);
    ++measured_;
    flows_ = result.flows;
    large_calls_ += large_calls(result.size, is_message(result.collective) ? 1 : world,
                                options_.warmup + result.time_us.size());
    results_.push_back(to_json(result, world));
  }

  /// Share of the whole work that is done after `done` steps of this item: by time if the time left
  /// is known, else by bytes. Never decreases.
  double share_done(std::uint32_t done) {
    const double elapsed = progress_.elapsed();
    double share = 0;
    if (const auto left = estimate_.left()) {
      share = elapsed / (elapsed + *left);
    } else {
      const std::size_t item = std::min(static_cast<std::size_t>(measured_), items_.size() - 1);
      const double here = (work_before_[item + 1] - work_before_[item]) * done;
      const double steps = options_.warmup + options_.iterations;
      share = std::min(1.0, (work_before_[item] + here / steps) / work_before_.back());
    }
    return share_ = std::max(share_, share);
  }

  std::string form() const {
    std::string text(name(options_.mode));
    if (options_.algorithm != Algorithm::automatic)
      text += fmt::format(" by {}", name(options_.algorithm));
    if (options_.group_size > 0) text += fmt::format(" in groups of {}", options_.group_size);
    if (options_.late_rank) text += fmt::format(" with rank {} late", *options_.late_rank);
    if (options_.learn_shares) text += ", shares learnt";
    if (!options_.shares.even()) text += fmt::format(", shares {}", shares_text(options_.shares));
    return text;
  }

  void print_head() {
    if (!first_) return;
    fmt::print(
        text_, "{}\n{}\n",
        wrapped(fmt::format("# tarpon {} {}: {}, over {}, {}, {}, {}, slots of {} B, rank 0 "
                            "on {} ({})",
                            kVersion, options_.row->command, rank_count(communicator_.world_size()),
                            carrier(options_.job, session_), datapath_of(communicator_), form(),
                            mtu_text(communicator_.ranks()), communicator_.slot_bytes(),
                            communicator_.ranks()[0].interface, session_.interface_reason)),
        wrapped("# datapath: " + datapath_text(communicator_.ranks())));
    fmt::print(text_, "{}{}{}{}{}",
               hosts_line(communicator_.hosts(), against_hosts(options_, communicator_.hosts())),
               shrunk_line(communicator_.shrunk_slots()), small_buffers_line(communicator_.ranks()),
               multicast_line(communicator_.multicast()) + secret_line(communicator_.integrity()),
               table_header(shape_));
    std::fflush(text_);
  }

  void print_row(const Measurement& out, const std::optional<Measurement>& in) {
    if (!first_) return;
    const std::lock_guard lock(mutex_);
    progress_.clear();
    fmt::print(
        text_, "{}{}{}{}{}", table_row(shape_, out, in, communicator_.world_size(), out.checked),
        loss_line(out, in), notes(out), in ? notes(*in) : "", slow_line(out, in, session_.flight));
    fmt::print(text_, "{}", bound_warning(in ? *in : out));
    std::fflush(text_);
  }

  int give_up(const Error& error) {
    end_interruption();
    progress_.clear();
    session_.place.voice.error(error.message);
    if (failure_.is_null()) return 1;
    if (auto saved = save(); !saved) session_.place.voice.error(saved.error().message);
    return 1;
  }

  int finish() {
    end_interruption();
    // Every rank knows the sum: all of them end with the same code.
    const int code = wrong_ != 0 ? 1 : halted_.empty() ? 0 : kHalted;
    if (!halted_.empty()) session_.place.voice.error(halted_);
    print_footer();
    auto saved = agree(communicator_.control(), save());
    return saved ? code : give_up(saved.error());
  }

  void print_footer() {
    if (!first_) return;
    fmt::print(text_, "{}{}", flows_line(flows_, choice_of_flows(options_.job.flows, large_calls_)),
               columns_line(shape_, std::uint64_t{places_of(options_)} * options_.iterations));
    if (options_.learn_shares) {
      fmt::print(text_, "# Shares, learnt        : {}\n",
                 shares_text(communicator_.learnt_shares(0)));
    }
    fmt::print(text_, "{}",
               table_footer(checked_ ? std::optional(wrong_) : std::nullopt,
                            measured_ > 0 ? busbw_ / measured_ : 0));
    std::fflush(text_);  // --json may go there too
  }

  /// Call before an end is reported. Does not return after a signal: what follows from the signal
  /// is not a failure.
  void end_interruption() {
    if (interruption_) interruption_->yield();
    interruption_.reset();
  }

  /// Runs after a signal, in a thread of its own, because the main thread may be in a call.
  void last_words() {
    const std::lock_guard lock(mutex_);
    progress_.clear();
    interrupted_ = true;
    fmt::print(text_, "{}", interrupted_line(partial_, options_.iterations));
    if (measured_ > 0) print_footer();
    std::fflush(text_);
    if (auto saved = save(); !saved) session_.place.voice.error(saved.error().message);
  }

  Result<void> save() {
    if (!first_) return {};
    nlohmann::json json = json_report(config_json(given_, session_), results_);
    if (!failure_.is_null() && !interrupted_) json["failure"] = failure_;
    if (interrupted_) {
      json["interrupted"] = true;
      json["partial"] = to_json(partial_);
    }
    return write_json(options_.json, json);
  }

  const CollectiveOptions& given_;
  CollectiveOptions options_;  // kind: of the sweep that runs
  Session& session_;
  Communicator& communicator_;
  const std::vector<SweepKind> kinds_;
  const bool first_;
  std::FILE* const text_;  // for the table
  const TableShape shape_;
  ProgressLine progress_;
  const std::vector<std::uint64_t> items_;  // sizes
  const std::vector<double> work_before_;
  PatternBuffers buffers_;
  // After a signal another thread reads the members below, except halted_.
  std::mutex mutex_;
  WorkEstimate estimate_;
  double share_ = 0;    // done, as last shown
  PartialRun partial_;  // the size under way
  bool interrupted_ = false;
  std::vector<std::uint32_t> flows_;  // of each rank, after the last size
  std::uint64_t large_calls_ = 0;     // large_calls() of all sizes
  std::uint64_t next_step_ = 0;
  std::string halted_;  // why the run ended early
  nlohmann::json results_ = nlohmann::json::array();
  nlohmann::json failure_;  // null: none
  std::uint64_t wrong_ = 0;
  bool checked_ = true;  // all results
  double busbw_ = 0;
  int measured_ = 0;
  // Rank 0 only, while it measures. Declared last, because it uses the other members.
  std::optional<Interruption> interruption_;
};

}  // namespace

int run_benchmark(const CollectiveOptions& options, Session& session) {
  return Benchmark(options, session).run();
}

}  // namespace tarpon
