// Calls that have not begun: their numbers, and the reports of those that end so.
#include <algorithm>

#include "collectives/engine/bounded/tar_call.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/report/peer_report.h"

namespace tarpon {

void Engine::release(std::uint32_t tag) {
  for (Waiting& waiting : waiting_) {
    if (!waiting.held || waiting.call->arguments.tag != tag) continue;
    waiting.held = false;
    startable_ = true;
  }
}

/// Ends all calls in the queue. They stay there until their numbers are taken.
void Engine::end_waiting(const Ending& ending, Time now) {
  for (Waiting& waiting : waiting_) {
    if (waiting.over) {
      const std::uint32_t tag = waiting.call->report.tag;
      if (broken_ || aborted_) missed_.set_next(tag, next_unbegun(tag));
      continue;
    }
    end_unbegun(*waiting.call, ending, waiting.submitted, now);
    waiting.over = true;
    ++over_waiting_;
  }
}

/// REQUIRES: its number is in the report.
void Engine::end_unbegun(PendingCall& call, const Ending& ending, Time submitted, Time now) {
  Report& report = call.report;
  report.status = ending.status;
  report.abort_reason = ending.reason;
  report.blamed = ending.blamed;
  report.detail = ending.detail;
  note_unbegun(report, submitted, now);
  if (broken_ || aborted_) {
    missed_.note(report, next_unbegun(report.tag), endpoint_.furthest(report.tag));
  }
  end_before_start(call);
}

void Engine::note_unbegun(Report& report, Time submitted, Time now) const {
  report.elapsed = now - submitted;
  report_last_heard(endpoint_, options_.endpoint.rank, options_.endpoint.world_size, now, report);
}

/// Calls of the tag that queue have their numbers already.
std::uint32_t Engine::next_number(std::uint32_t tag) const {
  const auto before = std::count_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) {
    return one.call->arguments.tag == tag;
  });
  return endpoint_.next_number(tag) + static_cast<std::uint32_t>(before);
}

std::vector<EpochRecord::Start> Engine::next_numbers() const {
  std::vector<EpochRecord::Start> result;
  for (const std::uint32_t tag : endpoint_.tags()) result.push_back({tag, next_number(tag)});
  return result;
}

/// The number of a call that no longer takes one at the endpoint. It still tells calls apart.
std::uint32_t Engine::next_unbegun(std::uint32_t tag) const {
  const auto known = missed_.next_number(tag);
  return known ? *known : next_number(tag);
}

}  // namespace tarpon
