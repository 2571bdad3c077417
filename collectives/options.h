// How a rank joins a job, and how its communicator works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bpf/wire.h"
#include "collectives/datapath.h"
#include "collectives/flight_options.h"
#include "collectives/mechanisms.h"
#include "collectives/port_range.h"
#include "collectives/rendezvous_options.h"
#include "collectives/step_verdict.h"
#include "transport/fault_options.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Rank, world size and rendezvous (for_rank()) are enough for a job on one host or several: the
/// rest has defaults, and connect() finds the network.
struct CommunicatorOptions {
  static constexpr std::uint32_t kMaxLanes = 4;

  RendezvousOptions rendezvous;
  /// If it is not automatic, a rank that cannot have it is an error of connect() on all ranks.
  Datapath datapath = Datapath::automatic;
  /// Such a rank takes another datapath instead. shrink() and rejoin() set it: the communicator
  /// before still has its queues.
  bool datapath_may_change = false;
  /// The interface that carries the job, its IPv4 address (packets leave with it as their source),
  /// its driver (for reports) and its MTU in bytes. connect() fills the empty ones. It takes the
  /// interface with the given name or address; without both, loopback in a job of one rank, else
  /// the interface that reaches the rendezvous: loopback for a rendezvous on loopback, and never a
  /// bridge, nor a veth beside other devices. An address that another rank cannot reach is an error
  /// of connect() on all ranks. Packets leave by an interface that is named here, whatever the
  /// kernel's routes say, if it has a route to every rank: RankInfo::datapath_reason says so, or
  /// why not. Control connections take the kernel's routes.
  std::string address = {};
  std::string interface = {};
  std::string driver = {};
  std::uint32_t mtu = 0;
  /// Packets in one GSO train of the UDP datapaths, 1 to 64; 1 switches GSO off.
  std::uint32_t gso_segments = 0;
  /// Source ports that this rank sends from to each peer, for networks that limit each flow: 1, 2,
  /// 4 or 8. 0: four for large messages if a trial shows that four carry more than one.
  std::uint32_t flows = 0;
  /// Threads that work for the UDP datapaths of this rank, 1 to kMaxLanes: the driver, and threads
  /// that send large messages for it. 0: by the processors that the ranks of this machine may use
  /// (lanes_by_processors()), for example 1 on 2. RankInfo::lanes has the number.
  std::uint32_t lanes = 0;
  /// Ports of all sockets of this rank that others send to or connect to, for networks that let
  /// only some pass. Default: the kernel chooses.
  PortRange ports = {};
  /// Whether results, which are the same for all ranks, are sent by IP multicast: one packet for
  /// all. Alike on all ranks. Communicator::multicast() says why a job does not multicast although
  /// it was asked to. Each rank needs an interface of its own, and a network that carries
  /// multicast.
  bool multicast = false;
  /// Whether calls add up in each host first, through memory that its ranks share.
  /// Communicator::hosts() says whether they do, and why not. Alike on all ranks. Injected faults
  /// imply false; on one host so do a datapath that is named and a limit of the rate.
  bool hosts = true;
  /// Receive buffer of the UDP socket in bytes, for tests of small ones. 0: 16 MiB, or what
  /// net.core.rmem_max allows without CAP_NET_ADMIN. RankInfo::receive_bytes has the size
  /// that the kernel granted.
  std::size_t receive_buffer_bytes = 0;
  /// none is for benchmarks only. udp becomes crc32c for all as soon as one rank's datapath
  /// verifies no checksum. With RendezvousOptions::secret: keyed, unless this is sealed, which
  /// encrypts payloads too; crc32c and none are refused.
  tarpon_integrity integrity = TARPON_INTEGRITY_UDP;
  /// AF_XDP: poll the driver from the rank's own thread. RankInfo::datapath_reason says when that
  /// has no effect.
  bool busy_poll = false;
  /// Alike on all ranks.
  Mechanisms mechanisms;
  /// Whether every call has AllreduceArguments::learn_shares. Alike on all ranks.
  bool learn_shares = false;
  /// Limit of the DATA that this rank sends, Tarpon's headers included; 0: none.
  double max_bytes_per_second = 0;
  /// Memory of retained results, bookkeeping included; one result is always retained.
  std::uint64_t retain_bytes = 64ull << 20;
  /// Silence after which a rank is left out of bounded calls until it is heard again. Exact calls
  /// wait for it. Below 50 ms a busy machine looks silent. Alike on all ranks.
  Duration silent_after = 300ms;
  /// Silence after which a rank is dead. Counts only the time in which an exact call or a shrink()
  /// waits for the rank: the sum over exact calls, or one shrink(). Idle time never counts. More
  /// than half of the live ranks must not hear it, or exactly half for a second more. Death is
  /// final, like an eviction. Alike on all ranks.
  Duration dead_after = 5s;
  /// Dumps of the flight recorder, and the status socket: they show from outside what this rank
  /// does.
  FlightOptions flight;
  FaultOptions faults;  // injected behind the port, for tests on live jobs
  /// Whether a thread makes progress; without it asynchronous calls move only inside poll() and
  /// blocking calls.
  bool progress_thread = true;
  /// Budgets of Communicator::agree(), ascending by from_step; alike on all ranks. Empty:
  /// LossBudget::usual().
  std::vector<LossBudget> loss_budgets = {};

  /// `rendezvous`: "tcp://HOST:PORT", "HOST:PORT" or "file://PATH" (RendezvousOptions::address).
  static CommunicatorOptions for_rank(Rank rank, std::uint32_t world_size, std::string rendezvous);

  /// Finds the options in the environment of this process, network included. Rank and world size
  /// come from torchrun, Open MPI, PMI (MPICH), PMIx or Slurm; the first complete set wins. The
  /// rendezvous comes from TARPON_RENDEZVOUS, else MASTER_ADDR with TARPON_PORT or MASTER_PORT + 1,
  /// else, when all ranks are on this host, a private directory. TARPON_INTERFACE (or
  /// TARPON_SOCKET_IFNAME) names the interface; TARPON_RENDEZVOUS_TIMEOUT, TARPON_PORTS,
  /// TARPON_DATAPATH, TARPON_CODEC, TARPON_LOSS_TARGET, TARPON_MULTICAST, TARPON_HOSTS,
  /// TARPON_LANES and TARPON_FLIGHT set the options that their names say, TARPON_SHARES=auto sets
  /// learn_shares, and TARPON_ORDER sets Mechanisms::rotation. If the name of rank 0's host is not
  /// known yet, this waits for it as long as for the other ranks, once. Errors: one line that names
  /// the variable, its value and the remedy. Reads the environment as getenv() does: no other
  /// thread may change it meanwhile.
  static Result<CommunicatorOptions> from_environment();
};

}  // namespace tarpon
