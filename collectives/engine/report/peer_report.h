// The part about each rank that every report has, even that of a call that never began.
#pragma once

#include "collectives/allreduce.h"
#include "transport/endpoint.h"

namespace tarpon {

/// Fills Report::peers with how long ago each rank was heard, and nothing else.
void report_last_heard(const Endpoint& endpoint, Rank self, std::uint16_t world, Time now,
                       Report& report);

}  // namespace tarpon
