#include "tools/collective/file_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>

#include "tools/cli/exit_code.h"
#include "tools/cli/files/report_output.h"
#include "tools/cli/interruption.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/wrapped_text.h"
#include "tools/collective/file_check.h"
#include "tools/collective/npy.h"
#include "tools/collective/result_table.h"
#include "tools/collective/slow_calls.h"
#include "tools/collective/timed_calls.h"
#include "tools/collective/work_estimate.h"
#include "tools/job/datapath_text.h"
#include "tools/job/host_trouble.h"
#include "tools/job/joint_outcome.h"
#include "tools/job/rank_names.h"
#include "tools/reference/fnv.h"
#include "tools/version.h"
#include "xdp/base/printable.h"

namespace tarpon {
namespace {

std::string describe(const NpyArray& array) {
  return fmt::format("{} ({})", npy_type_name(array.type), fmt::join(array.shape, ", "));
}

std::string hash(const NpyArray& array) {
  std::uint64_t value = kFnvStart;
  fnv_mix(value, array.data);
  return fmt::format("{:016x}", value);
}

constexpr std::size_t kHashDigits = 16;

/// What tells one input from another: hash of the data, type and shape.
std::string identity(const NpyArray& array) {
  return fmt::format("{} {}", hash(array), describe(array));
}

class FileJob {
 public:
  FileJob(const CollectiveOptions& options, Session& session)
      : options_(options),
        session_(session),
        communicator_(*session.communicator),
        control_(communicator_.control()),
        rank_(communicator_.rank()),
        progress_(rank_ == 0, session.place.progress_fd) {}

  int run() {
    if (auto read = read_input(); !read) return give_up(read.error());
    Measurement measurement;
    Report last;
    partial_ = {input_.data.size(), true, {}};
    if (rank_ == 0) interruption_.emplace([this] { last_words(); });
    if (auto ran = reduce_all(measurement, last); !ran) return give_up(ran.error());
    remember(measurement);
    const Result<std::string> checked = check(last, measurement);
    if (!checked) return give_up(checked.error());
    if (measurement.wrong == 0 && halted_.empty()) {
      if (auto written = write_output(); !written) return give_up(written.error());
    }
    interruption_.reset();
    if (rank_ == 0) print(measurement, *checked);
    nlohmann::json results = nlohmann::json::array();
    results.push_back(to_json(measurement, communicator_.world_size()));
    if (auto saved = agree(control_, save(results)); !saved) return give_up(saved.error());
    if (measurement.wrong != 0) return 1;
    if (halted_.empty()) return 0;
    session_.place.voice.error(halted_);
    return kHalted;
  }

 private:
  /// Does what can fail on any rank before any work. Sets input_ and identities_.
  Result<void> read_input() {
    auto input = read_npy(path_of_rank(options_.input, rank_));
    Result<std::string> mine = input.map(identity);
    const auto refuse = [&mine](const Result<void>& checked) {
      if (mine && !checked) mine = fail(checked.error());
    };
    if (rank_ == 0) refuse(check_json(options_.json));
    if (!options_.output.empty()) refuse(check_npy_output(path_of_rank(options_.output, rank_)));
    auto all = agree(control_, mine);
    if (!all) return fail(all.error());
    input_ = std::move(*input);
    identities_ = std::move(*all);
    for (std::size_t rank = 0; rank < identities_.size(); ++rank) {
      if (identities_[rank].size() > kHashDigits) continue;
      return fail(Error::Code::mismatch, fmt::format("rank {} did not describe its input", rank));
    }
    const auto shape = [this](std::size_t rank) {
      return printable(identities_[rank].substr(kHashDigits), kLongestMessage);
    };
    for (std::size_t rank = 1; rank < identities_.size(); ++rank) {
      if (shape(rank) == shape(0)) continue;
      return fail(Error::Code::mismatch,
                  fmt::format("rank {} has{} where rank 0 has{}: all inputs need the same type "
                              "and shape",
                              rank, shape(rank), shape(0)));
    }
    return {};
  }

  Result<void> reduce_all(Measurement& measurement, Report& last) {
    CollectiveOptions options = options_;
    options.kind.type = input_.type == NpyType::float32 ? DataType::float32 : DataType::float64;
    result_ = input_;
    TimedCalls calls{
        options, communicator_, session_.log, options.iterations, options.warmup, {}, {}, {}, {}};
    std::uint64_t step = 0;
    if (!options.job.loss_budgets.empty()) calls.step = &step;
    calls.refill = [this] {
      std::memcpy(result_.data.data(), input_.data.data(), input_.data.size());
    };
    const std::uint32_t steps = options.iterations + options.warmup;
    WorkEstimate estimate({result_.data.size()}, steps);
    calls.progress = [&](std::uint32_t done, double us) {
      const std::lock_guard lock(mutex_);
      if (done > options.warmup) partial_.time_us.push_back(us);
      estimate.update(done, progress_.elapsed());
      progress_.update(static_cast<double>(done) / steps, estimate.left(), "allreduce");
    };
    const IterationLog log =
        run_timed(calls, result_.data.data(), result_.data.data(), result_.elements(), last);
    {
      const std::lock_guard lock(mutex_);
      progress_.clear();
    }
    auto logs = share_logs(control_, log, options.job.deadline, failure_);
    if (!logs) return fail(logs.error());
    measurement.size = result_.data.size();
    measurement.count = result_.elements();
    measurement.type = options.kind.type;
    measurement.function = options.kind.function;
    measurement.in_place = true;
    measurement.mode = last.mode;
    measurement.algorithm = last.algorithm;
    measurement.asked_mode = options.mode;
    measurement.checked = false;  // until check()
    measurement.given_bound_us = given_bound_us(options);
    measurement.datapath = datapath_of(communicator_);
    measurement.bound_rule = bound_rule(options.bound);
    measurement.loss_target = loss_target(options);
    merge(*logs, measurement);
    halted_ = log.halted;
    if (last.mode == Mode::bounded && halted_.empty() && communicator_.world_size() > 1) {
      std::vector<std::byte> low(result_.data.size()), high(result_.data.size());
      measurement.divergence = measure_divergence(communicator_, result_.data, options.kind.type,
                                                  options.job.deadline, low, high);
    }
    return {};
  }

  /// Compares the results of all ranks, which exact mode makes equal. Rank 0 checks its result
  /// against all inputs. Returns in words what was checked; the text is the same on all ranks.
  Result<std::string> check(const Report& last, Measurement& measurement) {
    if (!options_.check) return std::string("not checked (-c 0)");
    const auto all = agree(control_, hash(result_));
    if (!all) return fail(all.error());
    const bool alike = std::all_of(all->begin(), all->end(),
                                   [&](const std::string& one) { return one == (*all)[0]; });
    if (!alike && last.mode == Mode::exact) {
      return fail(Error::Code::mismatch, "the ranks' results differ: this is a defect, report it");
    }
    const std::string said = alike        ? "the same bits on all ranks"
                             : last.coded ? "replicas differ, a little everywhere"
                                          : "replicas differ where data was lost";
    const auto counted = agree(control_, rank_ == 0 ? checked_text(last) : "");
    if (!counted) return fail(counted.error());
    const std::string& found = counted->front();
    if (found.empty()) return said + "; rank 0 cannot read the others' inputs: sums unchecked";
    measurement.checked = true;
    char* rest = nullptr;
    measurement.wrong = std::strtoull(found.c_str(), &rest, 10);
    if (last.mode == Mode::bounded) measurement.squared_error = std::strtod(rest, nullptr);
    return fmt::format("{}; {} of {} values wrong against the inputs in double precision", said,
                       measurement.wrong, measurement.count);
  }

  /// The number of wrong elements and the squared error. Empty if this rank does not find an input,
  /// or finds another one than the input's rank has read.
  std::string checked_text(const Report& last) const {
    std::vector<NpyArray> inputs;
    for (Rank rank = 0; rank < communicator_.world_size(); ++rank) {
      auto input = read_npy(path_of_rank(options_.input, rank));
      if (!input || identity(*input) != identities_[rank]) return "";
      inputs.push_back(std::move(*input));
    }
    return fmt::format("{} {}", count_wrong(inputs, result_, options_.kind.function, last),
                       file_error(inputs, result_, options_.kind.function));
  }

  /// Writes the output of all ranks or, as far as a failure is known beforehand, of none.
  Result<void> write_output() {
    if (options_.output.empty()) return {};
    auto file =
        write_npy(path_of_rank(options_.output, rank_), result_.type, result_.shape, result_.data);
    const auto written = file ? Result<void>() : fail(file.error());
    if (auto all = agree(control_, written); !all) return all;
    return agree(control_, file->commit());
  }

  Result<void> save(const nlohmann::json& results) const {
    if (rank_ != 0) return {};
    nlohmann::json json = json_report(config_json(options_, session_), results);
    if (!failure_.is_null()) json["failure"] = failure_;
    return write_json(options_.json, json);
  }

  /// Keeps the results for last_words() when the calls have been made.
  void remember(const Measurement& measurement) {
    const std::lock_guard lock(mutex_);
    measured_.push_back(to_json(measurement, communicator_.world_size()));
  }

  /// Runs after a signal, in a thread of its own, because the main thread may be in a call or check
  /// the result.
  void last_words() {
    const std::lock_guard lock(mutex_);
    progress_.clear();
    fmt::print(options_.job.text, "{}", interrupted_line(partial_, options_.iterations));
    std::fflush(options_.job.text);
    nlohmann::json json = json_report(config_json(options_, session_), measured_);
    json["interrupted"] = true;
    json["partial"] = measured_.empty() ? to_json(partial_) : nlohmann::json(nullptr);
    const auto saved = write_json(options_.json, json);
    if (!saved) session_.place.voice.error(saved.error().message);
  }

  void print(const Measurement& measurement, const std::string& checked) const {
    std::FILE* const text = options_.job.text;
    const TableShape shape = options_.columns.value_or(default_shape(options_.mode));
    fmt::print(text, "{}\n{}\n",
               wrapped(fmt::format("# tarpon {} {}: {}, over {}, {}, {} of {} from {}", kVersion,
                                   options_.row->command, rank_count(communicator_.world_size()),
                                   carrier(options_.job, session_), measurement.datapath,
                                   name(measurement.function), describe(input_), options_.input)),
               wrapped("# datapath: " + datapath_text(communicator_.ranks())));
    fmt::print(text, "{}{}{}{}{}{}{}{}",
               hosts_line(communicator_.hosts(), against_hosts(options_, communicator_.hosts())),
               shrunk_line(communicator_.shrunk_slots()), small_buffers_line(communicator_.ranks()),
               multicast_line(communicator_.multicast()) + secret_line(communicator_.integrity()),
               table_header(shape),
               table_row(shape, std::nullopt, measurement, communicator_.world_size(),
                         measurement.checked),
               loss_line(std::nullopt, measurement), notes(measurement));
    fmt::print(text, "{}{}", bound_warning(measurement),
               slow_line(std::nullopt, measurement, session_.flight));
    if (measurement.lost_fraction == 0) {
      fmt::print(text, "# lost                 : nothing\n");
    } else {
      fmt::print(text,
                 "# lost                 : {:.4f} % of the contributions ({:.4f} % in stage 1, "
                 "{:.4f} % in stage 2){}\n",
                 measurement.lost_fraction * 100, measurement.lost_stage1 * 100,
                 measurement.lost_stage2 * 100,
                 measurement.lost_stage2 == 0 ? ""
                 : measurement.coded > 0      ? ": replicas differ"
                                              : ": replicas differ there");
    }
    const std::uint64_t large = large_calls(measurement.size, communicator_.world_size(),
                                            options_.warmup + measurement.time_us.size());
    fmt::print(
        text, "{}{}{}\n", flows_line(measurement.flows, choice_of_flows(options_.job.flows, large)),
        columns_line(shape, options_.iterations), wrapped("# checked              : " + checked));
    if (!options_.output.empty()) {
      fmt::print(text, "# written              : {}\n",
                 measurement.wrong != 0 ? "nothing, because values are wrong"
                 : halted_.empty()      ? options_.output
                                        : "nothing, because the run was halted");
    }
    fmt::print(text, "{}",
               table_footer(measurement.checked ? std::optional(measurement.wrong) : std::nullopt,
                            measurement.busbw(measurement.mean_us(), communicator_.world_size())));
    std::fflush(text);
  }

  int give_up(const Error& error) {
    if (interruption_) interruption_->yield();
    interruption_.reset();
    progress_.clear();
    session_.place.voice.error(error.message);
    if (failure_.is_null()) return 1;
    const auto saved = save(nlohmann::json::array());
    if (!saved) session_.place.voice.error(saved.error().message);
    return 1;
  }

  const CollectiveOptions& options_;
  const Session& session_;
  Communicator& communicator_;
  ControlChannel& control_;
  const Rank rank_;
  ProgressLine progress_;
  NpyArray input_, result_;
  std::vector<std::string> identities_;  // of the ranks' inputs
  std::string halted_;                   // why the run ended early
  nlohmann::json failure_;               // null: none
  // Guards progress_, partial_ and measured_, which last_words() uses.
  std::mutex mutex_;
  PartialRun partial_;  // the calls
  nlohmann::json measured_ = nlohmann::json::array();
  std::optional<Interruption> interruption_;  // rank 0, until the output is written
};

}  // namespace

std::string path_of_rank(std::string path, Rank rank) {
  const std::string mark = "{rank}";
  for (std::size_t found = path.find(mark); found != std::string::npos; found = path.find(mark)) {
    path.replace(found, mark.size(), std::to_string(rank));
  }
  return path;
}

int run_file_job(const CollectiveOptions& options, Session& session) {
  return FileJob(options, session).run();
}

}  // namespace tarpon
