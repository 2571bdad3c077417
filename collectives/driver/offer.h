// The sockets, the door of the control mesh and the data path that a rank offers to its job.
#pragma once

#include <optional>
#include <string>

#include "collectives/driver/datapath_port.h"
#include "collectives/hosts/shared_host.h"
#include "collectives/membership/socket_network.h"
#include "collectives/options.h"
#include "collectives/rank_info.h"
#include "transport/ports/udp_socket.h"

namespace tarpon {

/// Owns all of them. If the rank cannot take part, `info` has the error.
struct Offer {
  std::optional<UdpSocket> socket;
  mesh::Door door;
  std::optional<hosts::Door> host_door;
  DatapathOffer datapath;
  std::string one_flow;  // why a trial has one flow only; appended to the data path's reason
  std::string outgoing;  // by which interface packets leave, if one was named; appended too
  RankInfo info;
};

/// The name of this machine, for people.
std::string host_name();
/// Equal on two ranks if they share a network namespace of one running system.
std::string network_name();

/// Opens this rank's sockets and its door of the control mesh, and chooses its data path. Fills the
/// network of `options`: see rendezvous::fill_network(). Stops at the first error.
Offer make_offer(CommunicatorOptions& options, const std::string& local_address);

}  // namespace tarpon
