// `tarpon allreduce --input --output`: reduces real arrays, one .npy file a rank.
#pragma once

#include "tools/collective/collective_options.h"
#include "tools/job/session.h"

namespace tarpon {

/// Runs as one rank; rank 0 prints. Returns the exit code. A failure on one rank (an input missing,
/// shapes that differ, an output that could not be written) ends all ranks with a non-zero code.
int run_file_job(const CollectiveOptions& options, Session& session);

/// `path` with {rank} replaced.
std::string path_of_rank(std::string path, Rank rank);

}  // namespace tarpon
