// The side of the rendezvous of every rank but 0: find rank 0, say hello, wait for the verdict.
#pragma once

#include <cstdint>

#include "collectives/rendezvous/address.h"
#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/hello.h"
#include "transport/time.h"
#include "xdp/result.h"

namespace tarpon::rendezvous {

struct Joined {
  Connection connection;  // to rank 0
  std::uint32_t job = 0;  // cookie
  std::uint32_t public_id = 0;
};

/// Tries until `deadline`, because rank 0 may come later and a file may be left from an earlier
/// start, and because rank 0 closes connections when it has too many. `timeout` is for messages.
/// Errors: what rank 0 says, invalid_argument (no such host), timeout with the last reason.
Result<Joined> join_rank_0(const Address& address, Hello hello, Time deadline, Duration timeout);

}  // namespace tarpon::rendezvous
