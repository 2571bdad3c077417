// A network in memory with virtual time: N ports, one per rank, in one thread. The same seed gives
// the same packets at the same times. FaultPort and SimulatedTraffic can add faults.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "transport/port.h"
#include "transport/simulated/fabric.h"

namespace tarpon {

struct SimulatedNetworkOptions {
  std::uint16_t ranks = 2;
  std::uint32_t max_payload = 1408;  // bytes
  Duration delay = 20us;             // of every packet
  Duration jitter = 10us;            // uniform on top of it; reorders packets that overlap
  bool gathers = true;               // as PortCapabilities
  std::uint32_t burst = 16;
  std::uint32_t flows = 1;                // at most TARPON_MAX_FLOWS
  bool multicasts = false;                // as PortCapabilities
  std::uint64_t receive_bytes = 1 << 20;  // that may wait for receive(); more is an overrun
  std::uint32_t queue_packets = 4096;     // per receiver, under way or waiting; more: overruns
  std::uint32_t frames = 64;  // per transmit_frames(); small values exercise back-pressure
  std::uint64_t seed = 1;
  /// Modelled links, crossed before delay and jitter; their ranks and seed are those above.
  std::optional<FabricOptions> links = std::nullopt;
};

/// Bytes that a datagram takes on a link besides its own: Ethernet, IPv4 and UDP headers.
inline constexpr std::uint32_t kWireOverhead = 14 + 20 + 8;

/// Sees each packet of a simulated network once when it is sent and once when its fate is known.
class SimulatedTraffic {
 public:
  virtual ~SimulatedTraffic() = default;

  struct Route {
    std::string_view lost = {};  // why it is lost on the spot; empty: it is not
    Time not_before{};           // it arrives no earlier
  };
  virtual Route route(Time now, Rank from, Rank to, std::span<const std::byte> packet) = 0;

  /// `fate`: "delivered" to the port's user, or why not: the reason of route(), "queue", "policer",
  /// "loss", "overrun".
  virtual void ended(Time now, Rank from, Rank to, std::span<const std::byte> packet,
                     std::string_view fate) = 0;
};

/// Owns the packets in flight; outlives its ports. Single-threaded.
class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(const SimulatedNetworkOptions& options);
  ~SimulatedNetwork();

  /// Makes the port of `rank`. Call it once per rank.
  std::unique_ptr<Port> make_port(Rank rank);

  /// Virtual time never goes back.
  void advance_to(Time now);
  Time now() const;

  /// When advance_to() has something to do: the next packet arrives anywhere, or moves on over the
  /// modelled links. kNever when nothing is in flight.
  Time next_arrival() const;

  /// When the next packet moves on over the modelled links.
  Time next_crossing() const;

  /// When `rank` has something to receive, as far as that is known: a packet counts once it is
  /// through the modelled links.
  Time next_arrival(Rank rank) const;

  /// Makes packets go over perfect links from now on; those under way stay where they are.
  void heal();

  /// `traffic` outlives the network or is replaced by nullptr.
  void watch(SimulatedTraffic* traffic);

  /// Sends `packet` as if `from` had sent it to `to`, but outside of the trace and of
  /// SimulatedTraffic::route().
  void inject(Rank from, Rank to, std::span<const std::byte> packet);

  /// Hash over (time, source, destination, bytes) of every packet sent so far.
  std::uint64_t trace_hash() const;

 private:
  friend class SimulatedPort;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tarpon
