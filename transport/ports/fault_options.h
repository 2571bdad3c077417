// Faults that a FaultPort makes.
#pragma once

#include <cstdint>

#include "transport/time.h"

namespace tarpon {

/// Probabilities per received packet, each in [0, 1].
struct FaultOptions {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;   // held back for up to `reorder_delay`
  double corrupt = 0;   // one bit flipped, anywhere in the datagram
  double truncate = 0;  // cut at a random length
  Duration reorder_delay = 1ms;
  std::uint64_t seed = 1;

  bool any() const {
    return loss > 0 || duplicate > 0 || reorder > 0 || corrupt > 0 || truncate > 0;
  }
};

}  // namespace tarpon
