#include "collectives/engine/call/running_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/engine/report/peer_report.h"
#include "collectives/rank_list.h"
#include "transport/pair_tag.h"

namespace tarpon {
namespace {

// A call with fewer pieces teaches nothing: one interruption makes so few pieces look slow.
constexpr std::uint64_t kFewPieces = 4;

// Ranks that may share a processor. Work does not take longer than this factor allows: otherwise
// the process was stopped, or no thread drove the engine.
constexpr int kMostShared = 8;

std::string abort_text(AbortReason reason, const std::vector<Rank>& ranks) {
  const std::string who = rendezvous::rank_list(ranks);
  switch (reason) {
    case AbortReason::given_up:
      return who + " gave the operation up";
    case AbortReason::mismatch:
      return who + " met another operation under this number";
    case AbortReason::expired:
      return who + " reached its deadline before the call could begin there";
    case AbortReason::late:
      return who + " was late";
    case AbortReason::argument:
      return who + " refused the call: its arguments make no sense";
    case AbortReason::deadline:
      return who + " refused the call: its deadline was not positive";
    case AbortReason::memory:
      return who + " refused the call: no memory for its buffers";
    case AbortReason::exception:
      return who + " refused the call: an exception inside";
    case AbortReason::tag_forgotten:
      return who + " no longer remembers the numbers of this tag: use a new tag";
  }
  return who + " gave the operation up";
}

/// Reports have two stages; later ones count as the second.
std::size_t report_index(std::size_t stage) {
  return std::min<std::size_t>(stage, 1);
}

}  // namespace

Mode effective_mode(const CallArguments& arguments, std::uint32_t number) {
  if (number < Bounds::calibration(arguments.bound_rule)) return Mode::exact;
  return may_run_bounded(arguments) ? Mode::bounded : Mode::exact;
}

RunningCall::RunningCall(const Setting& setting, std::shared_ptr<PendingCall> call,
                         Endpoint& endpoint, Time submitted, Time now)
    : setting_(setting),
      call_(std::move(call)),
      endpoint_(endpoint),
      submitted_(submitted),
      began_(now),
      deadline_(after(submitted, call_->arguments.deadline)),
      work_(setting.piece_bytes),
      limit_(deadline_),
      gone_(setting.absent),
      blame_({.call = *call_,
              .endpoint = endpoint_,
              .handle = handle_,
              .closed = closed_,
              .rank = setting.rank,
              .world = setting.world,
              .forwards = !may_run_bounded(call_->arguments),
              .unknown = unknown_,
              .submitted = submitted_,
              .began = began_,
              .deadline = deadline_,
              .behind = setting_.behind}),
      mismatches_(setting.rank, setting.world) {
  Report& report = call_->report;
  report.tag = call_->arguments.tag;
  report.operation = endpoint_.tags().next_number(report.tag);
  report.mode = effective_mode(call_->arguments, report.operation);
}

void RunningCall::open(OperationSpec spec, const OperationSignature& signature, Time now) {
  signature_ = signature;
  spec.signature = encode(signature);
  closed_.open(static_cast<std::uint32_t>(spec.stages.size()));
  handle_ = endpoint_.submit(spec, now);
}

void RunningCall::close_stages(Time now) {
  for (std::uint8_t stage = 0; stage < closed_.count(); ++stage) {
    if (closed_.has(stage)) continue;
    endpoint_.near(handle_).close(stage, now);
    if (!endpoint_.view(handle_).has_closed(stage)) continue;  // packets are due
    call_->report.stages[report_index(stage)].elapsed = now - began_;
    closed_.close(stage);
  }
}

void RunningCall::close(std::unique_ptr<Retained> retained, std::uint64_t absent) {
  endpoint_.close(handle_, std::move(retained), absent);
  phase_ = Phase::over;
  work_.clear();  // the rest of a copy that the call has no time for
}

void RunningCall::abort_operation(AbortReason reason, std::uint64_t ranks) {
  endpoint_.abort(handle_, static_cast<std::uint32_t>(reason), ranks);
  phase_ = Phase::over;
  work_.clear();
}

void RunningCall::on_event(const Event& event, Time now) {
  switch (event.kind) {
    case Event::Kind::stage_closed: {
      StageReport& report = call_->report.stages[report_index(event.stage)];
      report.closing = event.closing;
      report.elapsed = event.elapsed;
      closed_.close(event.stage);
      return on_progress(event, now);
    }
    case Event::Kind::late:
      if (const auto last = static_cast<std::uint8_t>(closed_.count() - 1);
          !endpoint_.view(handle_).has_closed(last)) {
        closed_.reopen(last);
      }
      return on_progress(event, now);
    case Event::Kind::acknowledged:
    case Event::Kind::clock:
    case Event::Kind::extended:
      return on_progress(event, now);
    case Event::Kind::mismatch:
      mismatches_.add(event.peer, decode(event.signature), signature_);
      return mismatches_.collect(now, limit_);
    case Event::Kind::aborted:
      return on_abort(event, now);
    case Event::Kind::silent:
    case Event::Kind::heard:
    case Event::Kind::epoch:
      return;  // the engine handles them
    case Event::Kind::deadline:
      if (mismatches_.any()) {
        end_mismatched(now);
      } else if (!closed_.all() || blame_.unheard()) {
        end_at_deadline(now);
      }
      return;
  }
}

bool RunningCall::step(Time now) {
  if (over()) return true;
  if (!mismatches_.any()) return advance(now);
  if (now < mismatches_.end_at()) return false;
  end_mismatched(now);
  return true;
}

/// REQUIRES: the call is not over.
void RunningCall::end_mismatched(Time now) {
  call_->report.blamed = mismatches_.blamed();
  end(Status::mismatch, mismatches_.detail(), now);
}

void RunningCall::on_abort(const Event& event, Time now) {
  // The complete result of an AllReduce needs no peer any more, but a call of 0 elements has to
  // hear every rank. Of another exact collective the peers that give it up may lack what this rank
  // sends.
  const bool needs_none = has_all() && call_->arguments.count > 0;
  const bool late = event.reason == TARPON_ABORT_LATE;
  const bool owes_none = call_->report.mode == Mode::bounded || !call_->arguments.parts;
  if (needs_none && (late ? !owes() : owes_none)) return;
  if (event.reason == TARPON_ABORT_MISMATCH) {
    if (mismatches_.any()) return;
    mismatches_.add_ended(abort_text(AbortReason::mismatch, {event.peer}));
    return mismatches_.collect(now, limit_);
  }
  if (event.reason == TARPON_ABORT_LATE) return on_late_abort(event, now);
  const auto reason = static_cast<AbortReason>(event.reason);
  end_aborted(reason, event.ranks, abort_text(reason, ranks_of(event.ranks)), now);
}

/// Ends the call, because another rank has ended it at its deadline: `event.ranks` were late there.
void RunningCall::on_late_abort(const Event& event, Time now) {
  const bool cut_off = blame_.is_cut_off(event);
  if (!cut_off && (event.ranks & bit(setting_.rank)) != 0) {
    return end_aborted(
        AbortReason::late, bit(setting_.rank),
        fmt::format("rank {} gave the call up at its deadline, before it had {} of "
                    "this rank",
                    event.peer,
                    call_->arguments.parts ? "the data or the confirmation" : "the data"),
        now);
  }
  Report& report = call_->report;
  report.status = Status::peer_late;
  report.detail = cut_off ? fmt::format(
                                "rank {} gave the call up at its deadline: it did not hear "
                                "ranks that others heard",
                                event.peer)
                          : fmt::format("no complete answer from {} by the deadline of rank {}",
                                        rendezvous::rank_list(ranks_of(event.ranks)), event.peer);
  report.late_ranks = blame_.late_by(event);
  report_end(now);
  abort_operation(AbortReason::late, event.ranks);  // passed on as it came
}

void RunningCall::end_aborted(AbortReason reason, std::uint64_t ranks, std::string detail,
                              Time now) {
  if (over()) return;
  Report& report = call_->report;
  report.status = Status::aborted;
  report.abort_reason = reason;
  report.blamed = ranks_of(ranks);
  report.detail = std::move(detail);
  report_end(now);
  abort_operation(reason, ranks);
}

void RunningCall::end_at_deadline(Time now) {
  Report& report = call_->report;
  report.late_ranks = blame_.late();
  const std::string detail = blame_.late_text(report.late_ranks);
  const std::uint64_t late = mask_of(report.late_ranks);
  if (report.mode == Mode::bounded || late == 0) return end(Status::peer_late, detail, now);
  // An exact call ends on all ranks: the late ranks learn it at once, and the next calls match.
  report.status = Status::peer_late;
  report.detail = detail + blame_.silence_text();
  report_end(now);
  abort_operation(AbortReason::late, late);
}

Time RunningCall::next_deadline() const {
  switch (phase_) {
    case Phase::runs:
      return mismatches_.any() ? mismatches_.end_at() : wake_at_;
    case Phase::over:
      // Peers wait for the packets that a complete call still has to send. In all other calls some
      // rank was late already.
      return call_->report.status == Status::complete ? limit_ : Time::min();
    case Phase::completes:
      return kNever;
  }
  return kNever;
}

void RunningCall::end(Status status, std::string detail, Time now) {
  if (over()) return;
  Report& report = call_->report;
  report.status = status;
  report.detail = std::move(detail);
  report_end(now);
  if (status == Status::mismatch) {
    // Ranks that have not begun learn it too.
    abort_operation(AbortReason::mismatch, bit(setting_.rank));
  } else {
    // Our shard is not available. Exact calls wait for it until their deadlines.
    close(nullptr, report.mode == Mode::bounded ? bit(setting_.rank) : 0);
  }
}

void RunningCall::give_up(Rank origin, const std::string& detail, Time now) {
  end_aborted(AbortReason::given_up, bit(origin), detail, now);
}

void RunningCall::peers_gone(const Facts& facts, Time now) {
  if (over() || call_->report.mode == Mode::bounded) return;
  if (closed_.all() && !blame_.unheard() && !owes()) return;
  std::vector<Rank> gone;
  Standing highest = Standing::live;
  std::string text;
  for (const Rank rank : ranks_of(first_ranks(setting_.world) & ranks_of_tag(call_->report.tag))) {
    if (!endpoint_.view(handle_).takes_no_part(rank)) continue;
    const Fact& fact = facts.of(rank);
    gone.push_back(rank);
    highest = std::max(highest, fact.standing);
    text += (text.empty() ? "" : "; ") + fact.text();
  }
  if (gone.empty()) return;
  call_->report.blamed = std::move(gone);
  const Status status = highest == Standing::dead      ? Status::peer_dead
                        : highest == Standing::evicted ? Status::evicted
                                                       : Status::peer_left;
  end(status, std::move(text), now);
}

void RunningCall::evicted(const std::string& detail, Time now) {
  if (over()) return;
  if (mismatches_.any()) return end_mismatched(now);
  if (has_all() && !blame_.unheard()) return finish(now);
  call_->report.blamed = {setting_.rank};
  end(Status::evicted, detail, now);
}

bool RunningCall::complete(Time now) {
  if (phase_ == Phase::completes) {
    if (!work_.idle()) return false;
    call_->report.elapsed = now - submitted_;
    return true;
  }
  phase_ = Phase::completes;
  complete_output();
  return work_.idle();
}

void RunningCall::drop_work(Time now) {
  if (complete(now)) return;
  work_.clear();
  Report& report = call_->report;
  report.status = Status::aborted;
  report.abort_reason = AbortReason::given_up;
  report.blamed = {setting_.rank};
  report.detail = "given up by this rank before its output was complete";
  report.elapsed = now - submitted_;
}

void RunningCall::teach_work_rate(Time now) {
  const bool whole = has_result(call_->report.status);
  if (!whole || work_.taken_bytes() < kFewPieces * setting_.piece_bytes) return;
  Duration took = work_.took();
  if (cut_at_) took = std::clamp(now - *cut_at_, took, kMostShared * took);
  setting_.work_rate->learn(work_.taken_bytes(), took, cut_at_.has_value());
}

void RunningCall::release(Time now) {
  teach_work_rate(now);
  released(now);
  call_->end();
}

void RunningCall::report_end(Time now) {
  Report& report = call_->report;
  report.elapsed = now - submitted_;
  report.stage = !closed_.has(0)  ? CallStage::scatter
                 : !closed_.all() ? CallStage::gather
                                  : CallStage::result;
  report_last_heard(endpoint_, setting_.rank, setting_.world, now, report);
  for (std::uint8_t stage = 0; stage < closed_.count(); ++stage) {
    for (Rank rank = 0; rank < setting_.world; ++rank) {
      if (rank == setting_.rank) continue;
      const MessageProgress message = endpoint_.view(handle_).progress(stage, rank);
      const std::size_t at = report_index(stage);
      report.peers[rank].bytes_expected[at] += message.all_bytes;
      report.peers[rank].bytes_received[at] += message.bytes;
      report.bytes_received += message.bytes;
    }
  }
  if (report.status != Status::complete) return;
  const std::uint64_t everybody = first_ranks(setting_.world);
  for (PeerReport& peer : report.peers) peer.contributors = everybody;  // LossAccount corrects it
}

}  // namespace tarpon
