// Opening the mesh: a TCP connection between every two ranks.
//
// Each rank listens before the ranks exchange their addresses, and afterwards connects to all lower
// ranks and lets all higher ones in. Who connects says first, little-endian: u32 magic, u32
// version, u32 job, u32 rank. Others are dropped; they cost a place among a bounded number.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/mesh/link.h"
#include "transport/port.h"
#include "transport/time.h"
#include "xdp/result.h"

namespace tarpon::mesh {

/// Where this rank lets higher ranks in.
struct Door {
  FileDescriptor listener;
  std::uint16_t port = 0;
};

/// Listens at `address` (IPv4), any port. Errors: invalid_argument, io.
Result<Door> open_door(const std::string& address);

struct Seat {
  Rank rank = 0;
  std::uint32_t job = 0;
  std::vector<sockaddr_in> doors;  // by rank
};

/// Connections by rank, the own one not open. Blocks until `deadline` at most. Errors: timeout and
/// unavailable, naming the ranks that cannot be reached, or did not come.
Result<std::vector<Link>> open_mesh(const Seat& seat, Door door, Time deadline);

}  // namespace tarpon::mesh
