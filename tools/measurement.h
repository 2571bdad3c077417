// What a benchmark measured at one size, and how it is written down: statistics, table row, JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "collectives/allreduce.h"

namespace tarpon {

/// One rank's log of the timed iterations of one size and place.
struct IterationLog {
  std::vector<double> time_us;      // per iteration, from call to return
  std::vector<std::uint64_t> late;  // per iteration, mask of ranks that this rank found late
  std::uint64_t wrong = 0;          // elements, of the last iteration
  double lost_fraction = 0;         // largest over the iterations
  double lost_stage1 = 0;
  double lost_stage2 = 0;
  double cpu_s = 0;               // user and system time of this rank over the timed calls
  std::uint64_t max_rss_kib = 0;  // peak resident memory of this rank so far
  std::string error;              // set when an iteration failed: one line
};

/// As one line of JSON, with at most `count` iterations from `first` on; bytes that are no UTF-8
/// (of paths, in `error`) are replaced.
std::string to_text(const IterationLog& log, std::size_t first, std::size_t count);
/// nullopt for a text that is no such log.
std::optional<IterationLog> iteration_log_from(const std::string& text);

/// Quantile by nearest rank; nullopt with too few samples to speak of it: p99 needs 100, the median
/// one.
std::optional<double> quantile(std::vector<double> values, double q);

struct Measurement {
  std::uint64_t size = 0;   // bytes
  std::uint64_t count = 0;  // elements
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;
  bool in_place = false;
  Mode mode = Mode::exact;
  std::string datapath;         // of rank 0, or "mixed"
  std::vector<double> time_us;  // per iteration: the slowest rank that was not late, else of all
  std::uint64_t wrong = 0;      // over all ranks
  double lost_fraction = 0;     // largest over ranks and iterations
  double lost_stage1 = 0;
  double lost_stage2 = 0;
  std::vector<Rank> late;         // union over iterations
  double cpu_s = 0;               // over all ranks and iterations
  std::uint64_t max_rss_kib = 0;  // of the largest rank

  double mean_us() const;
  double algbw(double time_us) const;  // GB/s
  double busbw(double time_us, std::uint32_t world) const;
};

/// Joins the logs of all ranks into times, wrong, lost and late of `measurement`.
void merge(const std::vector<IterationLog>& logs, Measurement& measurement);

nlohmann::json to_json(const Measurement& measurement, std::uint32_t world);

/// nccl-tests' header lines, with our columns behind theirs.
std::string table_header();
/// One row: `out` may lack (file form), then its columns show "-".
std::string table_row(const std::optional<Measurement>& out, const Measurement& in,
                      std::uint32_t world, bool checked);
/// nccl-tests' closing lines.
std::string table_footer(std::uint64_t wrong, double mean_busbw);

}  // namespace tarpon
