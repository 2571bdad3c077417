// What a benchmark measured at one size, and how it is written down: statistics, table row, JSON.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collectives/allreduce.h"
#include "tools/collective/divergence.h"
#include "tools/collective/measured_collective.h"
#include "tools/job/loss_summary.h"

namespace tarpon {

/// One rank's log of the timed iterations of one size and place.
struct IterationLog {
  std::uint32_t bit = 0;                   // of this rank in masks: Communicator::mask_bit()
  std::vector<double> time_us;             // per iteration, from call to return
  std::vector<std::uint64_t> late;         // per iteration, mask of ranks that this rank found late
  std::vector<double> lost;                // per iteration, lost_fraction of its report
  std::vector<double> bound_us;            // per iteration, of the whole call; 0: exact
  std::vector<double> held_us;             // per iteration, beyond that: Report::held
  std::vector<int> closing;                // per iteration, the worse Closing of its stages
  std::vector<LossCauses> causes;          // per iteration
  std::vector<std::uint64_t> void_shards;  // per iteration, mask of Report::void_shards
  std::vector<int> verdicts;  // per iteration, warm-up included; empty without loss budgets
  std::string halted;         // why the run ended early; one line
  std::set<Rank> nonfinite;   // ranks whose inputs held NaN or infinity
  std::uint32_t flows = 1;    // of this rank's large messages, after the last iteration
  std::uint64_t coded = 0;    // coded iterations
  std::uint64_t wrong = 0;    // elements, of the last iteration
  double squared_error = 0;   // of the last iteration, relative; set where it was checked
  double lost_fraction = 0;   // largest over the iterations
  double lost_stage1 = 0;
  double lost_stage2 = 0;
  double cpu_s = 0;                // user and system time of this rank over the timed calls
  std::uint64_t sent_packets = 0;  // datagrams of this rank's port during the timed calls
  std::uint64_t sent_bytes = 0;    // of them, Tarpon's headers included
  std::uint64_t max_rss_kib = 0;   // peak resident memory of this rank so far
  nlohmann::json outcome;          // outcome_json() of the last iteration that was not complete,
                                   // else of the last one; null before one has ended
  std::string outcome_text;        // `outcome` in words; empty when it was complete
  std::string error;               // set when an iteration failed: one line
  bool peer_late = false;          // the iteration failed because a peer missed the deadline
};

/// One line of JSON, with at most `count` iterations from `first` on. Bytes that are not UTF-8 (of
/// paths, in `error`) are replaced.
std::string to_text(const IterationLog& log, std::size_t first, std::size_t count);
/// Returns nullopt if `text` is not such a log.
std::optional<IterationLog> iteration_log_from(const std::string& text);

struct Measurement {
  Collective collective = Collective::allreduce;
  std::uint64_t size = 0;   // bytes of the whole
  std::uint64_t count = 0;  // elements: MeasuredCollective::count_in()
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;  // of a collective that reduces
  Rank root = 0;                      // of a collective that has one
  bool in_place = false;
  Mode mode = Mode::exact;
  Algorithm algorithm = Algorithm::tar;
  Mode asked_mode = Mode::exact;
  std::string datapath;         // of rank 0, or "mixed"
  std::vector<double> time_us;  // per iteration, of the slowest rank that was not late, or of all
  std::vector<std::vector<double>> rank_time_us;  // of each rank, per iteration
  std::vector<double> lost;                       // per iteration: lost_fraction of the worst rank
  std::vector<CallLoss> calls;                    // per iteration
  std::uint64_t closed_early = 0;                 // iterations whose worst Closing is early
  std::uint64_t waited = 0;  // iterations in which a rank waited beyond its bound: Report::held
  std::uint64_t closed_by_bound = 0;        // iterations whose worst Closing is bound
  std::string bound_rule;                   // --bound's word; of bounded iterations
  std::optional<double> loss_target;        // of a learnt bound
  std::optional<double> given_bound_us;     // a fixed --bound
  std::array<std::uint64_t, 3> verdicts{};  // by Verdict, as rank 0 received them
  std::optional<Divergence> divergence;     // of the last iteration's results
  std::set<Rank> nonfinite;                 // ranks whose inputs held NaN or infinity
  std::vector<std::uint32_t> flows;         // of each rank's large messages, at the end
  std::uint64_t coded = 0;                  // coded iterations, at any rank
  bool checked = true;                      // whether `wrong` was counted
  std::uint64_t wrong = 0;                  // over all ranks
  std::optional<double> squared_error;      // of the worst rank's last result: relative to
                                            // the exact one's square; bounded mode
  double lost_fraction = 0;                 // largest over ranks and iterations
  double lost_stage1 = 0;
  double lost_stage2 = 0;
  std::vector<Rank> late;                  // union over iterations
  double cpu_s = 0;                        // over all ranks and iterations
  std::vector<double> sent_packets;        // of each rank, per iteration on average
  std::vector<double> sent_bytes;          // the same
  std::uint64_t max_rss_kib = 0;           // of the largest rank
  std::vector<nlohmann::json> outcomes;    // of each rank: IterationLog::outcome
  std::vector<std::string> outcome_texts;  // of ranks whose outcome was not complete

  std::string function_name() const;  // "sum"; "none" if nothing is reduced
  int root_number() const;            // -1: there is none
  double mean_us() const;
  double mean_lost() const;            // share of contributions: mean of `lost`
  double algbw(double time_us) const;  // GB/s
  /// GB/s of what arrived: without the contributions that were lost.
  double busbw(double time_us, std::uint32_t world) const;
};

/// Merges the logs of all ranks into times, wrong, lost and late of `measurement`.
void merge(const std::vector<IterationLog>& logs, Measurement& measurement);

nlohmann::json to_json(const Measurement& measurement, std::uint32_t world);

/// What rank 0 has seen so far of one size and place, for the report of an interrupted run.
struct PartialRun {
  std::uint64_t size = 0;  // bytes
  bool in_place = false;
  std::vector<double> time_us;  // of its timed iterations
};

/// null before the first iteration.
nlohmann::json to_json(const PartialRun& partial);
/// "# interrupted: ...", with `iterations` as the planned number; empty before the first one.
std::string interrupted_line(const PartialRun& partial, std::uint32_t iterations);

/// "# bounded: ...", of the calls out of place and in place together; see loss_text(). Empty if all
/// calls were exact.
std::string loss_line(const std::optional<Measurement>& out, const std::optional<Measurement>& in);
/// The lines below loss_line(). For bounded calls: closings, verdicts, how replicas differ, and the
/// last outcome that was not complete, of each rank that has one. For calls that ran exact although
/// bounded ones were asked for: one line. For other exact calls: empty.
std::string notes(const Measurement& measurement);
/// One line that names a sufficient bound, if calls with a fixed bound lose more than 1 % and twice
/// the time of exact calls is longer than the bound. Else empty.
std::string bound_warning(const Measurement& measurement);

}  // namespace tarpon
