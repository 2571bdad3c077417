#include "tools/simulation_coverage.h"

#include <fmt/format.h>

namespace tarpon {
void Coverage::add(const SimulationPlan& plan, const SimulationResult& result) {
  for (std::size_t i = 0; i < kFaultKinds; ++i) faults_[i] += plan.on[i] ? 1 : 0;
  for (std::size_t i = 0; i < kStatuses; ++i) statuses_[i] += result.statuses[i];
  for (std::size_t i = 0; i < counters_.dropped.size(); ++i) {
    counters_.dropped[i] += result.counters.dropped[i];
  }
}

void Coverage::each(const Mark& mark) const {
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    mark("seeds by fault", name(static_cast<FaultKind>(i)), faults_[i]);
  }
  for (std::size_t i = 0; i < counters_.dropped.size(); ++i) {
    mark("packets by drop reason", drop_reason_name(static_cast<DropReason>(i)),
         counters_.dropped[i]);
  }
  for (std::size_t i = 0; i < kStatuses; ++i) {
    mark("calls by status", name(static_cast<Status>(i)), statuses_[i]);
  }
}

std::string Coverage::table(std::uint64_t enough) const {
  std::string text;
  std::string_view last;
  each([&](std::string_view kind, std::string_view name, std::uint64_t count) {
    if (kind != last) text += fmt::format("{}{}:", text.empty() ? "" : "\n", kind);
    last = kind;
    text += fmt::format(" {} {}{}", name, count, count < enough ? "!" : "");
  });
  return text + "\n";
}

std::vector<std::string> Coverage::rare(std::uint64_t enough) const {
  std::vector<std::string> marks;
  each([&](std::string_view kind, std::string_view name, std::uint64_t count) {
    if (count < enough) marks.push_back(fmt::format("{}: {} {}", kind, name, count));
  });
  return marks;
}

}  // namespace tarpon
