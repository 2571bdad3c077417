#include "tools/simulation/seeds/coverage.h"

#include <fmt/format.h>

#include <algorithm>

namespace tarpon {
namespace {

/// Whether plans make calls end for this reason now and then.
bool is_drawn(AbortReason reason) {
  switch (reason) {
    case AbortReason::mismatch:  // at its receivers Status::mismatch
    case AbortReason::expired:   // in few plans
    case AbortReason::exception:
    case AbortReason::tag_forgotten:
      return false;  // left to unit tests
    case AbortReason::given_up:
    case AbortReason::late:
    case AbortReason::argument:
    case AbortReason::memory:
    case AbortReason::deadline:
      break;
  }
  return true;
}

}  // namespace

void Coverage::add(const SimulationPlan& plan, const SimulationResult& result) {
  for (std::size_t i = 0; i < kFaultKinds; ++i) faults_[i] += plan.on[i] ? 1 : 0;
  for (std::size_t i = 0; i < kStatuses; ++i) statuses_[i] += result.statuses[i];
  for (std::size_t i = 0; i < kAbortReasons; ++i) abort_reasons_[i] += result.abort_reasons[i];
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
  for (std::size_t i = 0; i < kAbortReasons; ++i) {
    const auto reason = static_cast<AbortReason>(i);
    if (is_drawn(reason)) mark("aborted calls by reason", name(reason), abort_reasons_[i]);
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
