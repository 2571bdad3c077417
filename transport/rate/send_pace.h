// How fast a sender may send to each peer, besides its credit and the cap of its rank.
//
// Rules are subclasses, one of which is chosen when the endpoint is made (rule_choice.h). Not
// thread-safe. No clock inside. Cost: one call a train of packets.
#pragma once

#include <cstddef>

#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

class SendPace {
 public:
  virtual ~SendPace() = default;

  /// How many packets of `packet_bytes` may leave for `peer` now, at most `most`.
  virtual std::size_t allowed(Rank peer, Time now, std::size_t packet_bytes,
                              std::size_t most) const = 0;
  virtual void sent(Rank peer, Time now, std::size_t bytes) = 0;
  /// When more may leave for `peer`; kNever: it is not paced.
  virtual Time next(Rank peer) const = 0;
  /// A round trip to `peer` was measured.
  virtual void round_trip(Rank peer, Duration rtt) = 0;
};

}  // namespace tarpon
