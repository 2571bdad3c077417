// A collective as a benchmark: nccl-tests' sweep on test patterns.
#pragma once

#include "tools/collective/collective_options.h"
#include "tools/job/session.h"

namespace tarpon {

/// Runs the sweep as one rank; rank 0 prints and writes the report. Returns the exit code: 0, or 1
/// when a call failed or a value was wrong.
int run_benchmark(const CollectiveOptions& options, Session& session);

}  // namespace tarpon
