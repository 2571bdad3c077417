// One reliable AllReduce after another: the steps of a schedule over ReliableFlows.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/scale/reliable_flow.h"
#include "tools/scale/step_schedule.h"

namespace tarpon::scale {

/// Single-threaded.
class ReliableRun {
 public:
  /// `flows` and `senders` are lent; this takes over flows.on_delivered().
  ReliableRun(Algorithm algorithm, std::uint32_t ranks, std::uint64_t bytes, ReliableFlows& flows,
              Senders& senders);

  struct Outcome {
    Duration completion{};  // until the last rank has its result
    Time idle;              // nothing of it is under way any more
  };
  /// REQUIRES: `start` is not before the last one's `idle`.
  Outcome operate(Time start, const std::vector<Episode>& episodes);

 private:
  void advance(Time now, Rank rank);
  bool may_leave(Rank rank) const;

  Algorithm algorithm_;
  std::uint32_t ranks_, steps_;
  std::uint64_t bytes_;
  ReliableFlows& flows_;
  Senders& senders_;
  std::vector<std::uint32_t> step_;                  // by rank: the one it waits in
  std::vector<std::uint8_t> received_;               // rank x step
  std::vector<std::uint32_t> scattered_, gathered_;  // by rank: messages in, of either half
  Time finished_{};
};

}  // namespace tarpon::scale
