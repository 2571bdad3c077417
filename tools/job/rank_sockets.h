// Asks the running ranks of this host through their status sockets (collectives/flight/flight.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "transport/port.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

/// What one rank answered, or why it did not.
struct RankAnswer {
  std::uint32_t user = 0;
  std::uint32_t public_id = 0;  // of its job
  Rank rank = 0;
  pid_t pid = 0;
  std::string bytes;  // complete only without `error`
  std::string error;  // one line, such as "no answer: Connection refused"; empty: none
};

/// Sends `request` to every rank of this user and waits for all answers together, at most
/// `patience`. Sorted by job and rank. As root: of every user, and in the network namespaces of
/// other processes too. A socket whose owner is not the user in its name is left out; so are the
/// sockets of one user beyond 512, and all beyond 1024: strangers cannot make this grow without
/// limit. The bytes of an answer may be anything. Errors: unavailable (no /proc).
Result<std::vector<RankAnswer>> ask_ranks(const std::string& request, Duration patience);

}  // namespace tarpon
