// Makes packets leave by the interface that the user named.
//
// The kernel's routes choose the interface that a packet leaves by. Where two interfaces are in one
// subnet, all packets leave by one of them, whichever address they come from. The data path obeys
// the name instead: UDP sockets by UdpSocket::send_by(), AF_XDP by its own look-up of routes. The
// control connections (rendezvous, mesh) carry few bytes and take the kernel's routes: a TCP
// connection that is bound to an interface gets no packet that comes in by another one. Where
// packets come in is for the peers and their ARP to choose.
#pragma once

#include <string>
#include <vector>

#include "collectives/driver/offer.h"
#include "collectives/rank_info.h"

namespace tarpon {

/// Makes the sockets and the AF_XDP port of `offer` send by the interface of rank `own`. Returns a
/// line for the report, such as "packets leave by eth1, not as the kernel's routes say". If packets
/// take the kernel's routes, the line gives the reason: a rank of this network namespace has
/// another interface, the interface has no route to a rank, its rp_filter would drop the answers,
/// or the kernel refuses. Returns "" if the routes leave by this interface, or if no rank is on
/// another host. REQUIRES: `offer` has a socket.
std::string send_by_interface(Offer& offer, const std::vector<RankInfo>& ranks, Rank own);

}  // namespace tarpon
