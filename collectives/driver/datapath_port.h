// Chooses the datapath of a rank, gives the reason, and makes the port.
//
// A job never changes the host by itself: it uses AF_XDP when asked for, or where an administrator
// has loaded the program and the driver grants zero-copy.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/datapath.h"
#include "collectives/engine/engine.h"
#include "collectives/rank_info.h"
#include "transport/port.h"
#include "transport/ports/udp_flows.h"
#include "transport/ports/udp_options.h"
#include "transport/ports/udp_socket.h"
#include "xdp/base/result.h"
#include "xdp/program.h"
#include "xdp/socket.h"

namespace tarpon {

/// Larger slots gain little and make credit and parking coarse; loopback's MTU would allow 64 KiB.
inline constexpr std::uint32_t kLargestSlot = 8896;

/// A rank's place among the ranks that share the link of its host.
struct LinkSharing {
  std::uint32_t place = 0;
  std::uint32_t ranks = 1;
};

/// The datapath that a rank offers before it knows the others.
struct DatapathOffer {
  Datapath datapath = Datapath::mmsg;
  std::string reason;     // why this one
  bool required = false;  // it was asked for: it is an error if the rank cannot have it
  std::uint32_t max_payload = 0;
  std::uint32_t gso_segments = kMaxGsoSegments;
  std::uint32_t lanes = 0;          // as CommunicatorOptions::lanes
  std::vector<UdpSocket> flows{};   // sockets of further flows; the first flow's is not among them
  std::optional<UdpGroup> group{};  // the job's; of the UDP datapaths
  bool busy_poll = false;
  bool prefers_interface = false;         // packets leave by the interface if it has a route
  std::uint32_t queues = 0;               // receive queues of the interface; xdp
  xdp::CopyMode copy{};                   // xdp: anything else takes a socket port
  std::optional<xdp::Program> program{};  // xdp: in use from now on
  bool served = false;                    // xdp: by tarpon xdp serve, without a program here
  std::optional<LinkSharing> sharing{};   // null: as the ranks of the job say
};

/// Returns what `wanted` allows on `interface`. Errors: permission, unavailable: why it is not
/// possible there.
Result<DatapathOffer> offer_datapath(Datapath wanted, const std::string& interface,
                                     std::uint32_t mtu);

struct DatapathPort {
  std::unique_ptr<Port> port;
  Datapath datapath = Datapath::mmsg;
  std::string reason;
  std::uint32_t lanes = 1;
};

/// How many lanes a rank has by itself, where `ranks` ranks share `processors` processors: half of
/// what its share leaves beside one for the application, rounded up; at least 1, at most kMaxLanes.
std::uint32_t lanes_by_processors(double processors, std::size_t ranks);

/// Makes the port of rank `agreed.endpoint.rank`. AF_XDP queues are divided among the ranks of one
/// interface. A rank that gets none, or no io_uring, takes the next datapath and says so, unless
/// the one offered is required. Errors: permission, unavailable (a required datapath: why, by which
/// process its queue is taken, and the remedy), io.
Result<DatapathPort> make_port(DatapathOffer offer, UdpSocket socket,
                               const std::vector<RankInfo>& ranks, const EngineOptions& agreed);

/// The place of rank `rank` among the ranks of its job that share its interface and data path.
LinkSharing sharing_of(Rank rank, const std::vector<RankInfo>& ranks);

/// The receive queues, of `queues`, of a rank with this place. Empty: there are more ranks than
/// queues.
std::vector<std::uint32_t> queue_share(LinkSharing sharing, std::uint32_t queues);

}  // namespace tarpon
