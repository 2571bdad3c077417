// Chooses over how many flows large messages go: a given number, or one found by trial.
//
// Clouds limit each flow (addresses and ports) by itself, so several carry more; elsewhere one
// costs least. A trial is three runs of large operations: the present number of flows, the other
// one, the present one again. The best operation of a run counts, since in the first one credit
// still follows what it learnt under another number. Operations are counted alike on all ranks, so
// all ranks try at once, and each sees the effect in what it receives. Each rank decides alone,
// since messages say in how many flows they travel.
#pragma once

#include <array>
#include <cstdint>

#include "transport/endpoint.h"

namespace tarpon {

/// Smallest message, in bytes, that goes over several flows when the choice is by trial.
inline constexpr std::uint64_t kLargeMessage = 1 << 20;

class FlowChoice {
 public:
  static constexpr std::uint32_t kMany = kTrialFlows;
  static constexpr double kWorthwhile = 1.3;       // times the rate of one flow, at least
  static constexpr std::uint32_t kRun = 3;         // operations of a run
  static constexpr std::uint32_t kTrialOf = 1024;  // operations, from one trial to the next
  static constexpr std::uint32_t kTrial = 3 * kRun;

  /// `asked`: a number of flows, or 0: by trial. `available`: of the port, at least 1.
  FlowChoice(std::uint32_t asked, std::uint32_t available);

  /// Whether the choice is by trial, which counts large operations alone.
  bool tries() const { return tries_; }

  struct Next {
    std::uint32_t flows = 1;
    bool measured = false;  // the caller has to call ended()
  };
  /// Chooses the flows of the next operation; by trial: of the next large one.
  Next next();

  /// Takes the rate of an operation that was measured; 0 when it failed.
  void ended(std::uint32_t flows, double bytes_per_second);

  /// The number of flows outside of trials.
  std::uint32_t flows() const { return flows_; }

 private:
  const bool tries_;
  std::uint32_t flows_;
  std::uint32_t number_ = 0;
  std::uint32_t awaited_ = 0;     // operations of the trial that have not ended
  std::array<double, 2> best_{};  // rates of the trial, bytes a second: with one flow, with many
};

}  // namespace tarpon
