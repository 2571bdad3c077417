// SendRule::timely: a rate to each peer, which follows the round trip (timely.h). For comparison.
#pragma once

#include <vector>

#include "transport/rate/pacer.h"
#include "transport/rate/send_pace.h"
#include "transport/rate/timely.h"

namespace tarpon {

class TimelyPace final : public SendPace {
 public:
  /// `max_bytes_per_second`: the rate to begin with, and the highest one; 0: faster than any link.
  TimelyPace(std::uint16_t world_size, double max_bytes_per_second);

  std::size_t allowed(Rank peer, Time now, std::size_t packet_bytes,
                      std::size_t most) const override {
    return peers_[peer].pacer.allowed(now, packet_bytes, most);
  }
  void sent(Rank peer, Time now, std::size_t bytes) override {
    peers_[peer].pacer.sent(now, bytes);
  }
  Time next(Rank peer) const override { return peers_[peer].pacer.next(); }
  void round_trip(Rank peer, Duration rtt) override;

 private:
  struct Peer {
    Timely timely;
    Pacer pacer;
  };

  std::vector<Peer> peers_;
};

}  // namespace tarpon
