// A test network on one machine: a network namespace for each host, all on one bridge.
//
// DESIGN NOTES
// 1. Nothing outlives the process, SIGKILL included: the namespaces have no name (no file below
//    /var/run/netns), so the kernel removes them, their links, queues and programs with the last
//    descriptor and the last process in them. Processes: tools/job/guarded_run.h. Links are made
//    inside, never in the caller's namespace.
// 2. Rejected: `ip netns`. It leaves mounts behind and remounts /sys for what runs inside.
// 3. Loss happens in tc programs on the bridge's ports, because AF_XDP, UDP and TCP all pass there
//    and a host's own interface stays free for an XDP program. A GSO train would be lost as a whole
//    there, so with loss, policers or flow limits the stack cuts trains before the driver of each
//    rank's interface. Rejected: gso_max_segs 1, with which a TCP flow reaches 0.2 Gb/s.
// 4. A rate is a token bucket (tbf) where frames leave the bridge towards a rank: the shallow queue
//    of a switch port. A policer stands at the same place and has no queue. Losses and flow limits
//    stand where frames enter the bridge.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "transport/port.h"
#include "xdp/base/result.h"

namespace tarpon {

struct TestbedRate {
  std::uint64_t bits_per_second = 2'000'000'000;
  std::uint64_t burst_bytes = 128 << 10;
  std::uint64_t limit_bytes = 400 << 10;  // of the queue; packets beyond it are lost
};

struct TestbedLoss {
  double probability = 0;    // of each IPv4 packet, independently
  std::uint64_t seed = 1;    // the same seed loses the same packets of a sequence
  double burst_share = 0;    // share of all packets that is lost in bursts (Gilbert-Elliott), in
                             // addition; below 1
  double burst_packets = 8;  // mean length of a burst; 10 ms without a packet end it
};

/// A token bucket over whole frames, without a queue.
struct TestbedLimit {
  std::uint64_t bits_per_second = 1'000'000'000;
  std::uint64_t burst_bytes = 128 << 10;  // up to 1 GiB
};

/// How ranks lie on hosts.
struct TestbedPlaces {
  std::uint32_t per_host = 1;  // ranks of a host; the last host may have fewer
  bool round_robin = false;    // rank r is on host r % hosts; else on host r / per_host

  std::uint32_t hosts(std::uint32_t ranks) const { return (ranks + per_host - 1) / per_host; }
  std::uint32_t host_of(Rank rank, std::uint32_t ranks) const {
    return round_robin ? rank % hosts(ranks) : rank / per_host;
  }
  /// The place of a rank among those of its host, and their number.
  std::uint32_t local_rank(Rank rank, std::uint32_t ranks) const {
    return round_robin ? rank / hosts(ranks) : rank % per_host;
  }
  std::uint32_t local_size(Rank rank, std::uint32_t ranks) const {
    std::uint32_t size = 0;
    for (std::uint32_t other = 0; other < ranks; ++other) {
      size += host_of(static_cast<Rank>(other), ranks) == host_of(rank, ranks) ? 1 : 0;
    }
    return size;
  }
};

struct TestbedOptions {
  std::uint32_t ranks = 2;  // on 1 to 250 hosts
  TestbedPlaces places;
  int mtu = 1500;                       // 576 to 65535
  std::optional<TestbedRate> rate;      // of every port towards its host, ...
  std::map<Rank, TestbedRate> rate_of;  // ... but those of the hosts of these ranks
  std::optional<TestbedRate> uplink;    // of every host's link towards the bridge
  std::optional<TestbedLoss> loss;
  std::optional<TestbedLimit> police;      // of every port towards its host, ...
  std::map<Rank, TestbedLimit> police_of;  // ... but those of the hosts of these ranks
  std::optional<TestbedLimit> flow_limit;  // of each UDP flow (addresses and ports)
  std::string tcp_congestion;              // control of TCP between ranks; empty: the system's
  int transmit_queues = 1;                 // of both ends of each link
  int receive_queues = 1;
};

/// Counts of IPv4 packets that a host sent into the bridge. `policed` counts packets sent to it.
struct TestbedLossCounters {
  std::uint64_t passed = 0;
  std::uint64_t dropped = 0;  // by TestbedLoss
  std::uint64_t limited = 0;  // by the limit of their flow
  std::uint64_t policed = 0;
};

/// What went through the queues of links that have a rate, all together.
struct TestbedQueues {
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;    // with the headers of Ethernet
  std::uint64_t dropped = 0;  // packets beyond the others, for which a queue had no room
};

/// Move-only owner of the network. Const calls from any thread.
class Testbed {
 public:
  /// Errors: permission ("... run as root"), invalid_argument (options),
  /// unavailable (no iproute2, kernel features).
  static Result<Testbed> create(const TestbedOptions& options);

  Testbed(Testbed&& other) noexcept;
  Testbed& operator=(Testbed&& other) noexcept;
  ~Testbed();

  std::uint32_t ranks() const;
  std::uint32_t hosts() const;

  /// Moves the calling thread into the namespace of a rank's host, for good. Its children follow.
  Result<void> enter(Rank rank) const;

  /// "10.77.x.y", on interface(): the only link besides loopback.
  std::string address(Rank rank) const;
  std::string interface() const { return "eth0"; }

  /// Descriptors owned by this object: the namespace of a rank's host, and the one that holds the
  /// bridge with its ports "p0", "p1", ..., one for each host.
  int network_namespace(Rank rank) const;
  int hub() const;

  /// REQUIRES: loss, a policer or a flow limit was given.
  Result<TestbedLossCounters> loss_counters(std::uint32_t host) const;

  /// Of the links to hosts, and of those from hosts.
  struct Queues {
    TestbedQueues to_hosts;
    TestbedQueues from_hosts;
  };
  Result<Queues> queues() const;

 private:
  struct State;
  explicit Testbed(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace tarpon
