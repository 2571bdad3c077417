#include "collectives/engine/call/running_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "collectives/engine/report/peer_report.h"
#include "collectives/rank_list.h"

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

}  // namespace

Mode effective_mode(const AllreduceArguments& arguments, std::uint32_t number) {
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
      mismatches_(setting.rank, setting.world) {
  Report& report = call_->report;
  report.tag = call_->arguments.tag;
  report.operation = endpoint_.tags().next_number(report.tag);
  report.mode = effective_mode(call_->arguments, report.operation);
}

void RunningCall::open(OperationSpec spec, const OperationSignature& signature, Time now) {
  signature_ = signature;
  spec.signature = encode(signature);
  forwards_ = spec.forwards;
  stage_count_ = static_cast<std::uint32_t>(spec.stages.size());
  handle_ = endpoint_.submit(spec, now);
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

std::uint64_t RunningCall::bucket_bytes() const {
  return call_->arguments.count * element_bytes(call_->arguments.type);
}

OperationSignature RunningCall::common_signature() const {
  const AllreduceArguments& arguments = call_->arguments;
  OperationSignature result;
  result.type = arguments.type;
  result.function = arguments.function;
  result.count = arguments.count;
  if (arguments.function == ReduceOp::custom) result.custom = arguments.custom.id;
  result.learns = arguments.learn_shares && arguments.algorithm == Algorithm::tar;
  return result;
}

void RunningCall::on_event(const Event& event, Time now) {
  switch (event.kind) {
    case Event::Kind::stage_closed:
      stage_report(event.stage).closing = event.closing;
      stage_report(event.stage).elapsed = event.elapsed;
      closed_ |= 1u << event.stage;
      return on_progress(event, now);
    case Event::Kind::acknowledged:
    case Event::Kind::clock:
    case Event::Kind::extended:
    case Event::Kind::late:
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
      } else if (!all_closed() || unheard()) {
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
  // A complete result needs no peer any more, but a call of 0 elements has to hear every rank.
  if (all_closed() && call_->arguments.count > 0) return;
  if (event.reason == TARPON_ABORT_MISMATCH) {
    if (mismatches_.any()) return;
    mismatches_.add_ended(abort_text(AbortReason::mismatch, {event.peer}));
    return mismatches_.collect(now, limit_);
  }
  if (event.reason == TARPON_ABORT_LATE) return on_late_abort(event, now);
  const auto reason = static_cast<AbortReason>(event.reason);
  end_aborted(reason, event.ranks, abort_text(reason, ranks_of(event.ranks)), now);
}

/// Whether the rank that gave the call up was cut off itself. It was not if this rank began after
/// that. It was if it lacks more than half of the ranks. It also was if it is the only rank that
/// this rank lacks: the others' shards are here, so they had this rank's data.
bool RunningCall::is_cut_off(const Event& late_abort) const {
  if (late_abort.begun_late || setting_.world == 2) return false;
  if (2 * std::popcount(late_abort.ranks) > static_cast<int>(setting_.world)) return true;
  return !forwards_ && absent_ranks() == std::vector<Rank>{late_abort.peer};
}

/// Ends the call, because another rank has ended it at its deadline: `event.ranks` were late there.
void RunningCall::on_late_abort(const Event& event, Time now) {
  const bool cut_off = is_cut_off(event);
  if (!cut_off && (event.ranks & bit(setting_.rank)) != 0) {
    return end_aborted(AbortReason::late, bit(setting_.rank),
                       fmt::format("rank {} gave the call up at its deadline, before it had the "
                                   "data of this rank",
                                   event.peer),
                       now);
  }
  std::vector<Rank> late = absent_ranks();
  std::erase_if(late, [&](Rank rank) { return (event.ranks & bit(rank)) == 0; });
  if (late.empty() && forwards_) late = ranks_of(event.ranks & ~bit(setting_.rank));
  if (cut_off || late.empty()) late = {event.peer};
  Report& report = call_->report;
  report.status = Status::peer_late;
  report.detail = cut_off ? fmt::format(
                                "rank {} gave the call up at its deadline: it did not hear "
                                "ranks that others heard",
                                event.peer)
                          : fmt::format("no complete answer from {} by the deadline of rank {}",
                                        rendezvous::rank_list(ranks_of(event.ranks)), event.peer);
  report.late_ranks = std::move(late);
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

std::vector<Rank> RunningCall::absent_ranks() const {
  const OperationView operation = endpoint_.view(handle_);
  std::vector<Rank> not_begun;
  for (Rank peer = 0; peer < setting_.world; ++peer) {
    if (peer != setting_.rank && !operation.progress(0, peer).heard) not_begun.push_back(peer);
  }
  if (!not_begun.empty()) return not_begun;
  if (!forwards_) return incomplete_ranks();
  const std::uint64_t silent = endpoint_.peers().silent();
  if (all_closed()) return ranks_of(silent & operation.unacknowledged());
  return silent != 0 ? ranks_of(silent) : incomplete_ranks();
}

/// The ranks whose message of the earliest stage is incomplete.
std::vector<Rank> RunningCall::incomplete_ranks() const {
  const OperationView operation = endpoint_.view(handle_);
  std::vector<Rank> ranks;
  for (std::uint8_t stage = 0; stage < stage_count_ && ranks.empty(); ++stage) {
    for (Rank peer = 0; peer < setting_.world; ++peer) {
      const MessageProgress message = operation.progress(stage, peer);
      if (peer != setting_.rank && message.received < message.slots) ranks.push_back(peer);
    }
  }
  return ranks;
}

bool RunningCall::queued_too_long() const {
  return !setting_.behind.empty() && began_ - submitted_ > deadline_ - began_;
}

std::vector<Rank> RunningCall::late_ranks() const {
  return queued_too_long() ? setting_.behind : absent_ranks();
}

void RunningCall::end_at_deadline(Time now) {
  Report& report = call_->report;
  report.late_ranks = late_ranks();
  const std::string detail = fmt::format(
      "no complete answer from {} within the deadline of {} s{}",
      report.late_ranks.empty() ? "the other ranks" : rendezvous::rank_list(report.late_ranks),
      std::chrono::duration<double>(call_->arguments.deadline).count(),
      queued_too_long() ? ": most of it was spent behind earlier calls" : "");
  const std::uint64_t late = mask_of(report.late_ranks);
  if (report.mode == Mode::bounded || late == 0) return end(Status::peer_late, detail, now);
  // An exact call ends on all ranks: the late ranks learn it at once, and the next calls match.
  report.status = Status::peer_late;
  report.detail = detail + silence_text();
  report_end(now);
  abort_operation(AbortReason::late, late);
}

/// Says how many ranks answer, if some are silent. An exact call runs to its deadline only while
/// all ranks are live.
std::string RunningCall::silence_text() const {
  const int world = setting_.world;
  const int answering = world - std::popcount(endpoint_.peers().silent());
  if (answering == world) return "";
  return fmt::format("; {}{} of {} ranks answer", 2 * answering <= world ? "cut off: " : "",
                     answering, world);
}

bool RunningCall::unheard() const {
  if (call_->arguments.count > 0 || call_->report.mode == Mode::bounded) return false;
  for (Rank peer = 0; peer < setting_.world; ++peer) {
    if (peer != setting_.rank && !endpoint_.view(handle_).progress(0, peer).heard) return true;
  }
  return false;
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
  if (all_closed() && !unheard()) return;
  std::vector<Rank> gone;
  Standing highest = Standing::live;
  std::string text;
  for (Rank rank = 0; rank < setting_.world; ++rank) {
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
  if (all_closed() && !unheard()) return finish(now);
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
  const Status status = call_->report.status;
  const bool whole =
      status == Status::complete || status == Status::partial || status == Status::late_self;
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
  report.stage = !closed(0)      ? CallStage::scatter
                 : !all_closed() ? CallStage::gather
                                 : CallStage::result;
  report_last_heard(endpoint_, setting_.rank, setting_.world, now, report);
  for (std::uint8_t stage = 0; stage < stage_count_; ++stage) {
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
