#include "collectives/engine/report/missed_calls.h"

namespace tarpon {
namespace {

/// Returns the later of two numbers of a tag, which wrap.
std::uint32_t later(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) > 0 ? a : b;
}

}  // namespace

std::optional<std::uint32_t> MissedCalls::next_number(std::uint32_t tag) const {
  const auto known = next_numbers_.find(tag);
  if (!known) return std::nullopt;
  return known->number;
}

void MissedCalls::note(Report& report, std::uint32_t next_number, std::uint32_t furthest) {
  next_numbers_.put(report.tag, {later(next_number, report.operation + 1)});
  if (report.status != Status::evicted) return;
  const auto first = first_numbers_.find(report.tag);
  report.first_missed = first ? first->number : report.operation;
  first_numbers_.put(report.tag, {report.first_missed});
  report.operations_missed = later(report.operation + 1, furthest) - report.first_missed;
}

}  // namespace tarpon
