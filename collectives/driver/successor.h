// Derives the options of a communicator's successor from those of the communicator.
#pragma once

#include <string>

#include "collectives/driver/connect.h"

namespace tarpon::mesh {

struct Successor {
  CommunicatorOptions options;
  std::string left_out;  // why ranks are not members: ShrinkPlan::left_out
};

/// Agrees with the other ranks, until `until`, on the members and where they meet. `given`: the
/// options that the communicator was made with; `rank` and `public_id`: its own and its job's.
/// Errors as Communicator::shrink() and rejoin().
Result<Successor> plan_successor(Membership& membership, Regroup what,
                                 const CommunicatorOptions& given, Rank rank,
                                 std::uint32_t public_id, Time until);

}  // namespace tarpon::mesh
