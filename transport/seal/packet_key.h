// Which key seals a packet.
#pragma once

#include <cstdint>

#include "transport/job_key.h"
#include "transport/rank.h"
#include "transport/seal/gcm.h"

namespace tarpon::seal {

/// The packets of one direction that share a key.
struct Direction {
  Rank sender = 0;
  Rank receiver = 0;  // kAllRanks: multicast
  std::uint64_t generation = 0;
};

/// derive_key() with the info "tarpon packet 1", then sender and receiver (2 bytes each) and
/// generation (8 bytes), little-endian. Throws std::bad_alloc.
Key packet_key(const JobKey& job, const Direction& direction);

}  // namespace tarpon::seal
