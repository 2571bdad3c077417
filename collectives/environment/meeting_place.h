// Where the ranks of a job meet, opened by rank 0 before it connects: for jobs that pass the
// address on themselves, for example through a store of keys and values.
#pragma once

#include <memory>
#include <string>

#include "collectives/environment/interfaces.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon {

/// For RendezvousOptions: `listener` for rank 0 alone, `address` for all ranks.
struct MeetingPlace {
  std::string address;  // "tcp://10.0.0.1:45123"
  std::shared_ptr<FileDescriptor> listener;
};

/// Listens at a free port (of TARPON_PORTS, if that is set) of the interface that
/// choose_interface() takes. `wish.host` is a host that every rank reaches, such as that of the
/// store. A name other than localhost that means a loopback address on this host is used only where
/// the host has no other interface: on other hosts it means something else. Errors: those of
/// choose_interface(), and io.
Result<MeetingPlace> open_meeting_place(const InterfaceRequest& wish,
                                        const Environment& environment);

}  // namespace tarpon
