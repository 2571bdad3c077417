// Timed calls of a collective. All figures here follow one rule: an untimed refill and barrier come
// before each iteration, one operation is outstanding, and the time runs from call to return.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/cli/debug_log.h"
#include "tools/collective/collective_options.h"
#include "tools/collective/measurement.h"
#include "tools/job/session.h"

namespace tarpon {

/// The result compared with what it should be.
struct ResultCheck {
  std::uint64_t wrong = 0;   // elements
  double squared_error = 0;  // against the reduction over all ranks, relative to its square
};

struct TimedCalls {
  const CollectiveOptions& options;
  Communicator& communicator;
  const DebugLog& log;
  std::uint32_t iterations = 1;
  std::uint32_t warmup = 0;
  std::function<void()> refill;                     // before every iteration
  std::function<ResultCheck(const Report&)> check;  // after the last one; may be empty
  /// Called after each iteration, warm-up included, with how many are done and how long the last
  /// one took.
  std::function<void(std::uint32_t done, double us)> progress;
  // With loss budgets: the next step to agree on; each step increments it.
  std::uint64_t* step = nullptr;
};

/// Runs the calls on `input` and `output`, of `count` elements as the arguments of the call count.
/// The first failure ends the run and is in IterationLog::error. With loss budgets each call is a
/// step of its own; the ranks agree on it after the call, outside of the measured time. A verdict
/// of halt ends the run: IterationLog::halted. `last` is set to the report of the last iteration. A
/// slow call (slow_calls.h) leaves a flight recording.
IterationLog run_timed(const TimedCalls& calls, const void* input, void* output,
                       std::uint64_t count, Report& last);

/// Returns all ranks' logs on every rank, of any length; in a job of more than 64 ranks on rank 0,
/// and on the others their own. Errors name the ranks that failed or did
/// not answer. `failure` is then set to the entry of the JSON report: the error, and how the last
/// call of each rank ended (null: not known). Waits long, because other ranks may be counting wrong
/// elements; a rank whose calls failed waits at most `deadline`.
Result<std::vector<IterationLog>> share_logs(ControlChannel& control, const IterationLog& mine,
                                             Duration deadline, nlohmann::json& failure);

/// "uring", or "mixed" when ranks differ.
std::string datapath_of(const Communicator& communicator);

/// Each rank's host, interface and data path.
nlohmann::json ranks_json(const std::vector<RankInfo>& ranks);

/// The report's "config" object; its `seed` is that of the faults.
nlohmann::json config_json(const CollectiveOptions& options, const Session& session);

}  // namespace tarpon
