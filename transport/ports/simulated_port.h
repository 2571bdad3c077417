// A network in memory with virtual time: N ports, one per rank, in one thread. The same seed gives
// the same packets at the same times. Faults join by FaultPort.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/port.h"
#include "transport/random.h"

namespace tarpon {

struct SimulatedNetworkOptions {
  std::uint16_t ranks = 2;
  std::uint32_t max_payload = 1408;  // bytes
  Duration delay = 20us;             // of every packet
  Duration jitter = 10us;            // uniform on top of it; reorders packets that overlap
  bool gathers = true;               // as PortCapabilities
  std::uint32_t burst = 16;
  std::uint64_t receive_bytes = 1 << 20;
  std::uint32_t queue_packets = 4096;  // per receiver; what comes on top is an overrun
  std::uint32_t frames = 64;           // per transmit_frames(); small values exercise back-pressure
  std::uint64_t seed = 1;
};

/// Owns what is in flight; outlives its ports. Single-threaded.
class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(const SimulatedNetworkOptions& options);
  ~SimulatedNetwork();

  /// The port of `rank`; once per rank.
  std::unique_ptr<Port> make_port(Rank rank);

  /// Virtual time never goes back.
  void advance_to(Time now);
  Time now() const;

  /// When the next packet arrives anywhere; kNever when nothing is in flight.
  Time next_arrival() const;

  /// Hash over (time, source, destination, bytes) of every packet sent so far.
  std::uint64_t trace_hash() const;

 private:
  friend class SimulatedPort;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tarpon
