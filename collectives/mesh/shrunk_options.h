// From a communicator to the options of its successor.
#pragma once

#include "collectives/connection.h"

namespace tarpon::mesh {

/// Agrees with the other ranks, until `until`, on who is in it and where they meet. `given`: the
/// options that the communicator was made with; `rank` and `public_id`: its own and its job's.
/// Errors as Communicator::shrink() and rejoin().
Result<CommunicatorOptions> shrunk_options(Membership& membership, Regroup what,
                                           const CommunicatorOptions& given, Rank rank,
                                           std::uint32_t public_id, Time until);

}  // namespace tarpon::mesh
