// Over how many flows large messages go: as asked for, or by trial.
//
// Clouds limit each flow (addresses and ports) by itself, so several carry more; elsewhere one
// costs least. A trial is three runs of large operations: the present number of flows, the other
// one, the present one again. The best of a run counts, as the first of it still finds what credit
// learnt under another number. Operations are counted alike on all ranks, so that all try at once
// and each sees the effect in what it receives; what comes of it each decides alone, since messages
// say in how many flows they travel.
#pragma once

#include <array>
#include <cstdint>

#include "transport/endpoint.h"

namespace tarpon {

/// A message that goes over several flows, where the choice is by trial, has so many bytes.
inline constexpr std::uint64_t kLargeMessage = 1 << 20;

class FlowChoice {
 public:
  static constexpr std::uint32_t kMany = kTrialFlows;
  static constexpr double kWorthwhile = 1.3;       // times the rate of one flow, at least
  static constexpr std::uint32_t kRun = 3;         // operations of a run
  static constexpr std::uint32_t kTrialOf = 1024;  // operations, of which the first ones try
  static constexpr std::uint32_t kTrial = 3 * kRun;

  /// `asked`: a number of flows, or 0: by trial. `available`: of the port, at least 1.
  FlowChoice(std::uint32_t asked, std::uint32_t available);

  /// Whether large operations are to be told apart from others.
  bool tries() const { return tries_; }

  struct Next {
    std::uint32_t flows = 1;
    bool measured = false;  // ended() is to be told
  };
  /// Of the next operation; by trial: the next large one.
  Next next();

  /// An operation to be measured is over: what came of it, 0 where it failed.
  void ended(std::uint32_t flows, double bytes_per_second);

  /// Outside of trials.
  std::uint32_t flows() const { return flows_; }

 private:
  const bool tries_;
  std::uint32_t flows_;
  std::uint32_t number_ = 0;
  std::uint32_t awaited_ = 0;     // of the trial, that have not ended
  std::array<double, 2> best_{};  // of the trial, bytes a second: with one flow, with many
};

}  // namespace tarpon
