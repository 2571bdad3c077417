// Finds the largest packets that every pair of ranks carries: interfaces may say MTU 1500 where the
// path between them carries 1400.
//
// Every rank sends every other one a packet of the full size. If all arrive, the full size is used:
// the cost is these packets and one exchange over the control channel. If a packet is missing, the
// ranks of that pair go through all candidates (path_size.h) in rounds. An exchange between sending
// and counting proves that the sender has sent, however slowly its process runs. Then 20 ms are
// left for packets that are slower than the control channel. A further round follows while chance
// may explain what is missing: at most 4 rounds, of some 50 ms each (200 ms with 64 ranks and jumbo
// frames).
//
// REQUIRES, of all ranks: the port of every rank is open when begin() is called on any. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/rank_info.h"
#include "collectives/rendezvous/control.h"
#include "collectives/rendezvous/path_size.h"
#include "transport/port.h"

namespace tarpon::rendezvous {

class PathProbe {
 public:
  /// `slot_bytes`: the full size. `port` and `control` outlive the probe.
  PathProbe(Port& port, ControlChannel& control, std::uint32_t slot_bytes);

  /// Sends the first packets. The caller makes an exchange over the control channel before
  /// finish().
  void begin();

  /// Finds the size. Collective. Consumes everything that the port receives meanwhile. Errors:
  /// those of decide(); those of the control channel.
  Result<PathSize> finish(const std::vector<RankInfo>& ranks, Time deadline);

  /// Whether finish() has failed by decide(): a pair carries too little. Alike on all ranks.
  bool blocked() const { return blocked_; }

 private:
  using Tallies = std::vector<PathTally>;

  void send(std::span<const Rank> peers, std::size_t candidate);
  bool receive(Time now);
  void pause(Duration duration);
  void settle();
  bool all_full() const;
  Result<Tallies> share(Time deadline);
  std::string send_error() const;
  bool certain(const Tallies& tallies) const;
  Result<void> search(const Tallies& tallies, Time deadline);

  Port& port_;
  ControlChannel& control_;
  const std::vector<std::uint32_t> candidates_;
  std::vector<std::vector<std::uint32_t>> arrived_;  // by rank, then by candidate
  std::vector<std::uint32_t> sent_;                  // by candidate, to each rank
  std::vector<std::string> send_errors_;             // by rank, as reported
  Time send_until_{};                                // no send() waits longer for the port
  bool blocked_ = false;
};

}  // namespace tarpon::rendezvous
