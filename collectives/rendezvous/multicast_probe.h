// Finds out whether packets for all ranks reach every rank: clouds and many switches drop them.
//
// Each rank sends four beacons to the group, each as large as a full slot. An exchange between
// sending and counting proves that all ranks have sent. Then 20 ms are left for beacons that are
// slower than the control channel. Multicast is used where every rank has heard every other one.
// Cost: three exchanges and up to 28 ms.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/rendezvous/control.h"
#include "transport/port.h"

namespace tarpon::rendezvous {

/// Returns why the job does not multicast, in one line, the same on all ranks; empty: it does.
/// Collective. `refusal`: why this rank cannot; empty: it can, and `port` multicasts. Consumes what
/// the port receives meanwhile. Errors: those of the control channel.
Result<std::string> probe_multicast(Port& port, ControlChannel& control, std::uint32_t slot_bytes,
                                    const std::string& refusal, Time deadline);

}  // namespace tarpon::rendezvous
