// What a run of seeds has reached: faults, drop reasons, statuses, reasons of aborts, counted.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/simulation/simulation.h"

namespace tarpon {

class Coverage {
 public:
  void add(const SimulationPlan& plan, const SimulationResult& result);

  /// One line each: seeds by fault, packets by drop reason, calls by status, aborted calls by
  /// reason. Marks below `enough` end in '!'.
  std::string table(std::uint64_t enough) const;

  /// The marks below `enough`: "packets by drop reason: epoch 3".
  std::vector<std::string> rare(std::uint64_t enough) const;

 private:
  using Mark = std::function<void(std::string_view kind, std::string_view name, std::uint64_t)>;
  void each(const Mark& mark) const;

  std::array<std::uint64_t, kFaultKinds> faults_{};
  std::array<std::uint64_t, kStatuses> statuses_{};
  std::array<std::uint64_t, kAbortReasons> abort_reasons_{};
  EndpointCounters counters_;
};

}  // namespace tarpon
