#include "collectives/engine/unbegun_calls.h"

#include <fmt/format.h>

#include "collectives/engine/report/peer_report.h"
#include "collectives/rank_list.h"

namespace tarpon {

void UnbegunCalls::add(Waiting call) {
  if (call.over) {
    ++over_;
  } else {
    next_expiry_ = std::min(next_expiry_, call.deadline());
  }
  waiting_.push_back(std::move(call));
}

void UnbegunCalls::release(std::uint32_t tag) {
  for (Waiting& waiting : waiting_) {
    if (!waiting.held || waiting.tag() != tag) continue;
    waiting.held = false;
    released_ = true;
  }
}

void UnbegunCalls::note_behind(std::uint32_t tag, const std::vector<Rank>& ranks) {
  for (Waiting& waiting : waiting_) {
    if (waiting.tag() == tag) waiting.behind = ranks;
  }
}

bool UnbegunCalls::is_first_of_tag(std::size_t index) const {
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(index);
  return std::none_of(waiting_.begin(), end,
                      [tag = end->tag()](const Waiting& earlier) { return earlier.tag() == tag; });
}

void UnbegunCalls::expire(
    const std::function<std::optional<std::vector<Rank>>(std::uint32_t tag)>& late_ranks,
    Time now) {
  if (now < next_expiry_) return;
  next_expiry_ = kNever;
  for (Waiting& waiting : waiting_) {
    if (waiting.over) continue;
    if (now < waiting.deadline()) {
      next_expiry_ = std::min(next_expiry_, waiting.deadline());
      continue;
    }
    Report& report = waiting.call->report;
    const bool encoding = parts_.coded.encodes(*waiting.call);
    const auto late = encoding ? std::nullopt : late_ranks(report.tag);
    report.late_ranks = late.value_or(waiting.behind);
    report.status = Status::peer_late;
    report.detail = encoding ? "its bucket was still being encoded at its deadline"
                    : waiting.held
                        ? "the ranks were still exchanging measurements for its shares"
                        : fmt::format("queued behind unfinished calls of tag {}", report.tag);
    if (!report.late_ranks.empty()) {
      report.detail += ": no answer from " + rendezvous::rank_list(report.late_ranks);
    }
    fill_report(report, waiting.submitted, now);
    parts_.pieces.end_before_start(*waiting.call);
    waiting.over = true;
    ++over_;
  }
}

void UnbegunCalls::refuse(PendingCall& call, const Refusal& refusal, Time submitted, Time now) {
  Report& report = call.report;
  report.status = Status::aborted;
  report.abort_reason = refusal.reason;
  report.blamed = {parts_.options.rank};
  report.detail = refusal.detail;
  fill_report(report, submitted, now);
  call.end();
}

void UnbegunCalls::end(PendingCall& call, const CallEnding& ending, Time submitted, Time now) {
  Report& report = call.report;
  report.status = ending.status;
  report.abort_reason = ending.reason;
  report.blamed = ending.blamed;
  report.detail = ending.detail;
  fill_report(report, submitted, now);
  if (numbering_ended_) note_missed(report);
  parts_.pieces.end_before_start(call);
}

void UnbegunCalls::end_all(const CallEnding& ending, Time now) {
  for (Waiting& waiting : waiting_) {
    if (waiting.over) {
      const std::uint32_t tag = waiting.call->report.tag;
      if (numbering_ended_) missed_.set_next(tag, next_unnumbered(tag));
      continue;
    }
    end(*waiting.call, ending, waiting.submitted, now);
    waiting.over = true;
    ++over_;
  }
}

void UnbegunCalls::forget() {
  waiting_.clear();
  over_ = 0;
}

std::uint32_t UnbegunCalls::next_unnumbered(std::uint32_t tag) const {
  const auto known = missed_.next_number(tag);
  return known ? *known : next_number(tag);
}

void UnbegunCalls::note_missed(Report& report) {
  missed_.note(report, next_unnumbered(report.tag), parts_.endpoint.tags().furthest(report.tag));
}

void UnbegunCalls::fill_report(Report& report, Time submitted, Time now) const {
  report.elapsed = now - submitted;
  report_last_heard(parts_.endpoint, parts_.options.rank, parts_.options.world_size, now, report);
}

}  // namespace tarpon
