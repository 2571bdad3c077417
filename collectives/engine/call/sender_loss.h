// The share of each sender's contributions that is lost on the way here: the p of Rescale::inverse.
//
// It is the average of the first 32 bounded operations, then an exponential one with weight 1/32.
// A message does not count if none of it has arrived: its sender was late, so it tells nothing of
// the loss of the network. A lost share above one half is an outage. So the weight is at most 2,
// and the contributions of a sender with more loss stay too small.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "transport/port.h"

namespace tarpon {

class SenderLoss {
 public:
  static constexpr double kMost = 0.5;
  static constexpr double kLeast = 1e-4;  // a smaller share counts as none
  static constexpr double kMostWeight = 1 / (1 - kMost);

  explicit SenderLoss(std::uint16_t world_size) : senders_(world_size) {}

  /// Takes how many slots of a message of `slots` slots were received.
  void learn(Rank sender, std::uint32_t slots, std::uint32_t received) {
    if (received == 0) return;
    One& one = senders_[sender];
    one.samples = std::min(one.samples + 1, 32u);
    one.lost += (1 - static_cast<double>(received) / slots - one.lost) / one.samples;
  }

  double of(Rank sender) const {
    const double lost = senders_[sender].lost;
    return lost < kLeast ? 0 : std::min(lost, kMost);
  }

  /// 1 / (1 - p) of each sender; empty if no sender loses anything.
  std::vector<double> weights() const {
    std::vector<double> result(senders_.size(), 1);
    bool any = false;
    for (Rank sender = 0; sender < senders_.size(); ++sender) {
      result[sender] = 1 / (1 - of(sender));
      any |= of(sender) > 0;
    }
    return any ? result : std::vector<double>{};
  }

 private:
  struct One {
    double lost = 0;
    std::uint32_t samples = 0;
  };
  std::vector<One> senders_;
};

}  // namespace tarpon
