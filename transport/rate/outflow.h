// What limits the DATA of this rank besides credit: the cap of the rank, the pace to each peer, and
// how many peers are sent to at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/endpoint_options.h"
#include "transport/rank_mask.h"
#include "transport/rate/pacer.h"
#include "transport/rate/send_pace.h"

namespace tarpon {

class Outflow {
 public:
  explicit Outflow(const EndpointOptions& options);

  /// How many packets of `packet_bytes` may leave for `peer` now, at most `most`.
  std::size_t allowed(Rank peer, Time now, std::size_t packet_bytes, std::size_t most) const;
  void sent(Rank peer, Time now, std::size_t bytes) { sent_to_all(bit(peer), now, bytes); }
  /// The same packets went to all of `peers` (bit r: rank r): the cap of this rank counts them
  /// once.
  void sent_to_all(std::uint64_t peers, Time now, std::size_t bytes);
  /// When more may leave for `peer`; kNever when nothing paces its DATA.
  Time next(Rank peer) const;

  void round_trip(Rank peer, Duration rtt) { pace_->round_trip(peer, rtt); }
  /// Notes that `peer` takes this number of senders at once; 0: all.
  void senders_at(Rank peer, std::uint32_t senders);

  /// Number of peers that this rank sends to at once: the lowest number of senders that a peer
  /// takes, as OptiReduce has it.
  std::uint32_t peers_at_once() const { return peers_at_once_; }

 private:
  Pacer own_;
  const std::unique_ptr<SendPace> pace_;
  std::vector<std::uint32_t> senders_;  // by peer: as it says
  std::uint32_t peers_at_once_;
};

}  // namespace tarpon
