// The probing behind `tarpon check`: one rank's view of its peers, round by round.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/connection.h"
#include "tools/check_command.h"

namespace tarpon {

/// What rank `from` found of rank `to`, and what `to` saw of it.
struct PairProbe {
  Rank from = 0;
  Rank to = 0;
  std::uint32_t sent = 0;        // full-size probes
  std::uint32_t arrived = 0;     // of them, at `to`
  std::uint32_t answered = 0;    // replies that came back to `from`
  std::uint32_t small_sent = 0;  // header-only probes
  std::uint32_t small_arrived = 0;
  double rtt_us = 0;             // median of full-size round trips; 0 without any
  double rate_gbps = 0;          // payload rate of the blast as received
  std::uint64_t blast_sent = 0;  // packets that `from` gave to the network
  std::uint64_t blast_arrived = 0;
  std::uint64_t blast_overrun = 0;  // lost by the receive buffers of `to`, not on the way

  bool works() const { return answered > 0; }
  /// Works, and loses too few probes to blame the path: some get lost on any.
  bool good() const;
  std::uint32_t probes_lost() const;
  double loss() const;        // share of the full-size probes that did not arrive
  double blast_loss() const;  // share of the blast, which may outrun the path, lost on the way
};

/// Why the pair does not work, as far as can be told; one line with the remedy.
std::string likely_cause(const PairProbe& pair, std::uint32_t mtu, std::uint16_t udp_port);

/// Probes all pairs, rank by rank in rounds: in round k each rank probes the k-th after it. Every
/// rank calls it; all return everybody's pairs. Bounded by rounds x (probes and blast) plus the
/// control channel's deadlines.
Result<std::vector<PairProbe>> probe_pairs(Connection& connection, const CheckOptions& options);

}  // namespace tarpon
