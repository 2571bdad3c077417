#include "tools/file_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "tools/agreement.h"
#include "tools/npy.h"
#include "tools/progress_line.h"
#include "tools/timed_calls.h"
#include "tools/version.h"

namespace tarpon {
namespace {

std::string describe(const NpyArray& array) {
  return fmt::format("{} ({})", npy_type_name(array.type), fmt::join(array.shape, ", "));
}

/// FNV-1a of the result: equal on all ranks in exact mode.
std::uint64_t hash(std::span<const std::byte> bytes) {
  std::uint64_t value = 14695981039346656037ull;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    value = (value ^ word) * 1099511628211ull;
  }
  for (; at < bytes.size(); ++at) {
    value = (value ^ std::to_integer<std::uint64_t>(bytes[at])) * 1099511628211ull;
  }
  return value;
}

template <typename T>
double at(const NpyArray& array, std::uint64_t index) {
  T value;
  std::memcpy(&value, array.data.data() + index * sizeof(T), sizeof value);
  return static_cast<double>(value);
}

double reduce(ReduceOp function, double a, double b) {
  switch (function) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return a + b;
    case ReduceOp::prod:
      return a * b;
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
  }
  return a;
}

/// Elements of `result` farther from the reduction in double precision over the reported
/// contributors than rounding allows.
template <typename T>
std::uint64_t count_wrong(const std::vector<NpyArray>& inputs, const NpyArray& result,
                          ReduceOp function, const Report& report) {
  const std::size_t world = inputs.size();
  const std::uint64_t everybody = world >= 64 ? ~0ull : (1ull << world) - 1;
  std::vector<ContributorRun> runs = report.runs;
  if (runs.empty()) runs = {{0, result.elements(), everybody}};
  const double epsilon = 4 * static_cast<double>(world) * std::numeric_limits<T>::epsilon();
  std::uint64_t wrong = 0;
  for (const ContributorRun& run : runs) {
    if (run.contributors == 0) continue;  // a hole, reported as such
    for (std::uint64_t i = run.first; i < run.first + run.count; ++i) {
      std::optional<double> expected;
      double magnitude = 0;
      double present = 0;
      for (std::size_t rank = 0; rank < world; ++rank) {
        if ((run.contributors >> rank & 1) == 0) continue;
        const double value = at<T>(inputs[rank], i);
        expected = expected ? reduce(function, *expected, value) : value;
        magnitude += std::abs(value);
        present += 1;
      }
      double scale = 1;
      if (function == ReduceOp::avg) scale = 1 / present;
      if (function == ReduceOp::sum) scale = static_cast<double>(world) / present;
      const double tolerance =
          function == ReduceOp::prod ? std::abs(*expected) * epsilon : magnitude * scale * epsilon;
      const double difference = std::abs(at<T>(result, i) - *expected * scale);
      if (!(difference <= tolerance)) ++wrong;
    }
  }
  return wrong;
}

class FileJob {
 public:
  FileJob(const AllreduceOptions& options, Session& session)
      : options_(options),
        session_(session),
        communicator_(*session.communicator),
        rank_(communicator_.rank()),
        progress_(rank_ == 0, session.place.progress_fd) {}

  int run() {
    if (auto read = read_input(); !read) return give_up(read.error());
    Measurement measurement;
    Report last;
    if (auto ran = reduce_all(measurement, last); !ran) return give_up(ran.error());
    const Result<std::string> checked = check(last, measurement);
    if (!checked) return give_up(checked.error());
    if (auto written = write_output(); !written) return give_up(written.error());
    if (rank_ == 0) print(measurement, *checked);
    auto saved = agree(communicator_.control(), save(measurement), options_.job.deadline);
    if (!saved) return give_up(saved.error());
    return measurement.wrong == 0 ? 0 : 1;
  }

 private:
  Result<void> read_input() {
    auto input = read_npy(path_of_rank(options_.input, rank_));
    Result<std::string> mine = input.map(describe);
    const auto json = rank_ == 0 ? check_json(options_.json) : Result<void>();
    if (mine && !json) mine = fail(json.error());
    auto all = agree(communicator_.control(), mine, options_.job.deadline);
    if (!all) return fail(all.error());
    input_ = std::move(*input);
    for (std::size_t rank = 1; rank < all->size(); ++rank) {
      if ((*all)[rank] == (*all)[0]) continue;
      return fail(Error::Code::mismatch,
                  fmt::format("rank {} has {} where rank 0 has {}: all inputs need the same type "
                              "and shape",
                              rank, (*all)[rank], (*all)[0]));
    }
    return {};
  }

  Result<void> reduce_all(Measurement& measurement, Report& last) {
    AllreduceOptions options = options_;
    options.type = input_.type == NpyType::float32 ? DataType::float32 : DataType::float64;
    result_ = input_;
    TimedCalls calls{
        options, communicator_, session_.log, options.iterations, options.warmup, {}, {}, {}};
    calls.refill = [this] {
      std::memcpy(result_.data.data(), input_.data.data(), input_.data.size());
    };
    calls.progress = [&](std::uint32_t done) {
      progress_.update(done, options.iterations + options.warmup, "allreduce");
    };
    const IterationLog log =
        run_timed(calls, result_.data.data(), result_.data.data(), result_.elements(), last);
    progress_.clear();
    auto logs = share_logs(communicator_, log, options.job.deadline);
    if (!logs) return fail(logs.error());
    measurement.size = result_.data.size();
    measurement.count = result_.elements();
    measurement.type = options.type;
    measurement.function = options.function;
    measurement.in_place = true;
    measurement.mode = last.mode;
    measurement.datapath = datapath_of(communicator_);
    merge(*logs, measurement);
    return {};
  }

  /// Rank 0 reads all inputs where it can and checks its result against them; in exact mode all
  /// ranks compare theirs. Returns what was checked, in words.
  Result<std::string> check(const Report& last, Measurement& measurement) {
    if (!options_.check) return std::string("not checked (-c 0)");
    const std::string mine = fmt::format("{:016x}", hash(result_.data));
    auto all = agree(communicator_.control(), mine, options_.job.deadline);
    if (!all) return fail(all.error());
    const bool alike = std::all_of(all->begin(), all->end(),
                                   [&](const std::string& one) { return one == (*all)[0]; });
    if (!alike && last.mode == Mode::exact) {
      return fail(Error::Code::mismatch, "the ranks' results differ: this is a defect, report it");
    }
    std::string said = alike ? "the same bits on all ranks" : "replicas differ where data was lost";
    if (rank_ != 0) return said;
    std::vector<NpyArray> inputs;
    for (Rank rank = 0; rank < communicator_.world_size(); ++rank) {
      auto input = read_npy(path_of_rank(options_.input, rank));
      if (!input) return said + "; inputs of other ranks are not readable here: sums unchecked";
      inputs.push_back(std::move(*input));
    }
    measurement.wrong = input_.type == NpyType::float32
                            ? count_wrong<float>(inputs, result_, options_.function, last)
                            : count_wrong<double>(inputs, result_, options_.function, last);
    return fmt::format("{}; {} of {} values wrong against the inputs in double precision", said,
                       measurement.wrong, measurement.count);
  }

  Result<void> write_output() {
    if (options_.output.empty()) return {};
    const auto written =
        write_npy(path_of_rank(options_.output, rank_), result_.type, result_.shape, result_.data);
    return agree(communicator_.control(), written, options_.job.deadline);
  }

  Result<void> save(const Measurement& measurement) const {
    if (rank_ != 0) return {};
    return write_json(
        options_.json,
        {{"config", config_json(options_, communicator_)},
         {"results", nlohmann::json::array({to_json(measurement, communicator_.world_size())})}});
  }

  void print(const Measurement& measurement, const std::string& checked) const {
    fmt::print("# tarpon {} allreduce: {} ranks, {}, {} of {} from {}\n", kVersion,
               communicator_.world_size(), measurement.datapath, name(measurement.function),
               describe(input_), options_.input);
    fmt::print("{}{}", table_header(),
               table_row(std::nullopt, measurement, communicator_.world_size(), options_.check));
    if (measurement.lost_fraction == 0) {
      fmt::print("# lost                 : nothing\n");
    } else {
      fmt::print(
          "# lost                 : {:.4f} % of the contributions ({:.4f} % in stage 1, "
          "{:.4f} % in stage 2){}\n",
          measurement.lost_fraction * 100, measurement.lost_stage1 * 100,
          measurement.lost_stage2 * 100,
          measurement.lost_stage2 > 0 ? ": replicas differ there" : "");
    }
    fmt::print("# checked              : {}\n", checked);
    if (!options_.output.empty()) fmt::print("# written              : {}\n", options_.output);
    fmt::print("{}",
               table_footer(measurement.wrong,
                            measurement.busbw(measurement.mean_us(), communicator_.world_size())));
    std::fflush(stdout);
  }

  int give_up(const Error& error) {
    progress_.clear();
    fmt::print(stderr, "tarpon: {}\n", error.message);
    return 1;
  }

  const AllreduceOptions& options_;
  const Session& session_;
  Communicator& communicator_;
  const Rank rank_;
  ProgressLine progress_;
  NpyArray input_, result_;
};

}  // namespace

std::string path_of_rank(std::string path, Rank rank) {
  const std::string mark = "{rank}";
  for (std::size_t found = path.find(mark); found != std::string::npos; found = path.find(mark)) {
    path.replace(found, mark.size(), std::to_string(rank));
  }
  return path;
}

int run_file_job(const AllreduceOptions& options, Session& session) {
  return FileJob(options, session).run();
}

}  // namespace tarpon
