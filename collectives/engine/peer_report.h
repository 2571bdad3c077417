// What the report of every call says of each rank, also of a call that never began.
#pragma once

#include "collectives/allreduce.h"
#include "transport/endpoint.h"

namespace tarpon {

/// Report::peers with nothing but how long ago each rank was heard.
void report_last_heard(const Endpoint& endpoint, Rank self, std::uint16_t world, Time now,
                       Report& report);

}  // namespace tarpon
