// The results of probing one rank from another, and the likely cause if the pair does not work.
#pragma once

#include <cstdint>
#include <string>

#include "transport/rank.h"

namespace tarpon {

/// The results of probing rank `to` from rank `from`, as both of them counted.
struct PairProbe {
  Rank from = 0;
  Rank to = 0;
  std::uint32_t sent = 0;        // full-size probes
  std::uint32_t arrived = 0;     // full-size probes that arrived at `to`
  std::uint32_t answered = 0;    // full-size replies that came back to `from`
  std::uint32_t small_sent = 0;  // header-only probes
  std::uint32_t small_arrived = 0;
  std::uint32_t small_answered = 0;
  int send_error = 0;            // errno with which the host of `from` refused the probes; 0: none
  int reply_error = 0;           // errno with which the host of `to` refuses to send to `from`
  double rtt_us = 0;             // median of full-size round trips; 0 without any
  double rate_gbps = 0;          // payload of the flood as received, over the time of sending
  std::uint64_t flood_sent = 0;  // packets that `from` gave to the network; 0: no flood
  std::uint64_t flood_arrived = 0;
  std::uint64_t flood_overrun = 0;  // lost by the receive buffers of `to`, not on the way
  std::uint64_t fragmented = 0;     // packets that the host of `from` cut during the flood

  bool works() const { return answered > 0; }
  /// Whether the pair works and loses so few probes that the path is not to blame; some get lost on
  /// any path.
  bool good() const;
  /// Whether the figures of the flood mean anything.
  bool flooded() const { return works() && flood_sent > 0; }
  /// Whether the packets of the flood were cut into fragments, as below a tunnel whose own network
  /// has a smaller MTU. Other traffic of the host is cut now and then.
  bool cut_to_fragments() const { return flooded() && fragmented >= flood_sent / 2; }
  std::uint32_t probes_lost() const;
  double loss() const;        // share of the full-size probes that did not arrive
  double flood_loss() const;  // share of the flood that was lost on the way
};

/// Where the ranks of a pair are, for messages.
struct PairPlaces {
  std::uint32_t mtu = 1500;     // bytes, of the interface of `to`
  std::uint16_t from_port = 0;  // UDP
  std::uint16_t to_port = 0;
};

/// A warning about a pair that cut_to_fragments(), one line with the remedy. `interface`: of
/// `from`.
std::string fragments_warning(const PairProbe& pair, const std::string& interface,
                              std::uint32_t mtu);

/// The likely cause why the pair does not work; one line with the remedy.
std::string likely_cause(const PairProbe& pair, const PairPlaces& places);

}  // namespace tarpon
