#include "tools/simulation/part_calls.h"

#include <fmt/format.h>

#include <algorithm>

namespace tarpon {
namespace {

constexpr std::size_t kPartElements = 300;
constexpr Duration kDeadline = 2s;  // while there are faults

}  // namespace

Time PartCalls::next(Rank rank) const {
  if (!is_member(rank) || calls_[rank].size() >= most() || !idle(rank)) return kNever;
  return calls_[rank].size() < kCalls ? Time{} : live_from_;
}

void PartCalls::submit_due(Rank rank, Time now) {
  if (next(rank) > now) return;
  const bool live = calls_[rank].size() >= kCalls;
  Call& call = calls_[rank].emplace_back();
  call.buffer.assign(kPartElements, static_cast<float>(rank + calls_[rank].size()));
  AllreduceArguments arguments;
  arguments.input = arguments.output = call.buffer.data();
  arguments.count = kPartElements;
  if (!live) arguments.deadline = kDeadline;
  call.pending = ranks_[rank]->submit_to_part(arguments, now);
}

bool PartCalls::done(Rank rank, bool makes_calls) const {
  if (!is_member(rank)) return true;
  return idle(rank) && (calls_[rank].size() >= most() || !makes_calls);
}

void PartCalls::judge(SimulationResult& result) const {
  const bool whole = !plan_.loses_victim() || (plan_.part & bit(plan_.victim)) == 0;
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    for (std::size_t number = 0; number < calls_[rank].size(); ++number) {
      const Call& call = calls_[rank][number];
      const auto violate = [&](const std::string& what) {
        result.violations.push_back(
            fmt::format("part, call {} at rank {}: {}", number, rank, what));
      };
      const bool gone = rank == plan_.victim && plan_.loses_victim();
      if (!call.pending->done) {
        if (!gone) violate("did not end");
        continue;
      }
      const Report& report = call.pending->report;
      ++result.part_calls[report.status == Status::complete];
      if (report.status != Status::complete) {
        if (number >= kCalls && whole) violate(report.detail);
        continue;
      }
      float expected = 0;
      for (Rank other = 0; other < plan_.ranks; ++other) {
        if ((plan_.part & bit(other)) != 0) expected += static_cast<float>(other + number + 1);
      }
      const bool right = std::all_of(call.buffer.begin(), call.buffer.end(),
                                     [&](float got) { return got == expected; });
      if (!right) violate("a wrong result");
    }
  }
}

}  // namespace tarpon
