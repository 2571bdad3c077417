#include "collectives/engine/allreduce_operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <new>

#include "collectives/rank_list.h"

namespace tarpon {
namespace {

// After the first mismatch others may still come in: their ranks belong into the report.
constexpr Duration kMismatchGrace = 50ms;

// The longest time that the copy of our shard may still take when the rest of the work needs the
// time until the end of the call.
constexpr Duration kLongestOverrun = 4ms;

// Sending the last packets takes a moment even when the result was complete at once.
constexpr Duration kLeastSettling = 1ms;

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

bool can_be_bounded(DataType type, ReduceOp function) {
  return (function == ReduceOp::sum || function == ReduceOp::avg) && !is_integer(type);
}

bool may_run_bounded(const AllreduceArguments& arguments) {
  return arguments.mode == Mode::bounded && can_be_bounded(arguments.type, arguments.function);
}

AllreduceOperation::AllreduceOperation(const Setting& setting, std::shared_ptr<PendingCall> call,
                                       std::unique_ptr<Coding> coding, Endpoint& endpoint,
                                       Time submitted, Time now)
    : setting_(setting),
      call_(std::move(call)),
      endpoint_(endpoint),
      input_(static_cast<const std::byte*>(call_->arguments.input)),
      output_(static_cast<std::byte*>(call_->arguments.output)),
      coding_(std::move(coding)),
      schedule_(make_schedule()),
      reducer_(reducer_shape(
          effective_mode(call_->arguments, endpoint.next_number(call_->arguments.tag)))),
      work_(setting.piece_bytes),
      submitted_(submitted),
      began_(now),
      deadline_(after(submitted, call_->arguments.deadline)) {
  Report& report = call_->report;
  report.tag = call_->arguments.tag;
  report.operation = endpoint.next_number(report.tag);
  report.mode = effective_mode(call_->arguments, report.operation);
  if (report.mode == Mode::bounded) {
    report.rescale = setting.mechanisms.rescale;
    report.weights = reducer_.weights();
    report.epoch = setting.epoch.number;
  }
  if (coding_) {
    report.coded = CodedBucket{coding_->layout(), coding_->key()};
    if (!coding_->finite()) call_->nonfinite = true;
  }
  handle_ = endpoint_.submit(specify(now), now);
}

AllreduceOperation::~AllreduceOperation() {
  if (partials_) setting_.partial_buffers->release(std::move(*partials_));
}

void AllreduceOperation::on_event(const Event& event, Time now) {
  switch (event.kind) {
    case Event::Kind::stage_closed:
      call_->report.stages[event.stage].closing = event.closing;
      call_->report.stages[event.stage].elapsed = event.elapsed;
      if (event.stage == kScatter) {
        scatter_closed_ = true;
        if (event.closing != Closing::complete) settle();
      } else {
        gather_closed_ = true;
        gather_complete_ = event.closing == Closing::complete;
      }
      break;
    case Event::Kind::acknowledged:
      delivered_ = now;  // for learn(); step() asks the endpoint itself
      break;
    case Event::Kind::mismatch:
      on_mismatch(event, now);
      break;
    case Event::Kind::aborted:
      on_abort(event, now);
      break;
    case Event::Kind::silent:
    case Event::Kind::heard:
    case Event::Kind::epoch:
      break;  // the engine's
    case Event::Kind::clock:
      start_clock(event.at, now);
      break;
    case Event::Kind::late:
      late_self_ = true;
      break;
    case Event::Kind::deadline:
      if (fail_at_ != kNever) {
        end(Status::mismatch, "", now);
      } else if (!scatter_closed_ || !gather_closed_ || unheard()) {
        end_at_deadline(now);
      }
      break;
  }
}

/// Where all others made one and the same other call, this rank is the one to blame.
void AllreduceOperation::on_mismatch(const Event& event, Time now) {
  Report& report = call_->report;
  report.blamed.push_back(event.peer);
  const auto theirs = decode(event.signature);
  const auto difference = [](const auto& of, const auto& from) {
    return (of && from ? first_difference(*of, *from) : std::nullopt).value_or("unknown operation");
  };
  const std::optional<OperationSignature> ours = signature();
  if (report.blamed.size() == 1) {
    others_signature_ = theirs;
    report.detail = fmt::format("rank {} differs: {}", event.peer, difference(theirs, ours));
  }
  others_alike_ = others_alike_ && theirs && theirs == others_signature_;
  if (others_alike_ && report.blamed.size() > 1 && report.blamed.size() + 1 == setting_.world) {
    report.blamed = {setting_.rank};
    report.detail = fmt::format("this rank differs from all others: {}", difference(ours, theirs));
  }
  collect_mismatches(now);
}

/// Sets how long this rank collects the ranks that differ. A peer that has seen no difference has
/// to hear of it before its bound, or it calls this rank late.
void AllreduceOperation::collect_mismatches(Time now) {
  fail_at_ = std::min({fail_at_, now + kMismatchGrace, now + (limit() - now) / 2});
}

void AllreduceOperation::on_abort(const Event& event, Time now) {
  // A result that is there needs nobody any more; one of 0 elements needs everybody's word.
  if (scatter_closed_ && gather_closed_ && call_->arguments.count > 0) return;
  if (event.reason == TARPON_ABORT_MISMATCH) {
    // Whoever differs will say so itself, unless it has gone.
    if (fail_at_ != kNever) return;
    collect_mismatches(now);
    call_->report.detail = abort_text(AbortReason::mismatch, {event.peer});
    return;
  }
  if (event.reason == TARPON_ABORT_LATE) return on_late_abort(event, now);
  const auto reason = static_cast<AbortReason>(event.reason);
  end_aborted(reason, event.ranks, abort_text(reason, ranks_of(event.ranks)), now);
}

/// Whether the rank that gave the call up was cut off itself. Not where this rank began after that.
/// A rank that lacks more than half of the ranks is; so is one that is all that this rank lacks:
/// the others' shards are here, so that they had this rank's data.
bool AllreduceOperation::is_cut_off(const Event& late_abort) const {
  if (late_abort.begun_late || setting_.world == 2) return false;
  if (2 * std::popcount(late_abort.ranks) > static_cast<int>(setting_.world)) return true;
  return absent_ranks() == std::vector<Rank>{late_abort.peer};
}

/// Another rank has ended the call at its deadline, for want of `event.ranks`.
void AllreduceOperation::on_late_abort(const Event& event, Time now) {
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
  endpoint_.abort(handle_, TARPON_ABORT_LATE, event.ranks);  // passed on as it came
  over_ = true;
}

/// Ends it here and, told by us, at the peers: one that missed the first ABORT would wait.
void AllreduceOperation::end_aborted(AbortReason reason, std::uint64_t ranks, std::string detail,
                                     Time now) {
  if (over_) return;
  Report& report = call_->report;
  report.status = Status::aborted;
  report.abort_reason = reason;
  report.blamed = ranks_of(ranks);
  report.detail = std::move(detail);
  report_end(now);
  endpoint_.abort(handle_, static_cast<std::uint32_t>(reason), ranks);
  over_ = true;
}

std::vector<Rank> AllreduceOperation::absent_ranks() const {
  // Whoever has not begun is to blame; when all have, whoever's contribution is incomplete; when
  // those are here, the owners whose result is.
  std::vector<Rank> silent, scatter, gather;
  for (Rank peer = 0; peer < setting_.world; ++peer) {
    if (peer == setting_.rank) continue;
    const MessageProgress first = endpoint_.progress(handle_, kScatter, peer);
    const MessageProgress second = endpoint_.progress(handle_, kGather, peer);
    if (!first.heard) silent.push_back(peer);
    if (first.received < first.slots) scatter.push_back(peer);
    if (second.received < second.slots) gather.push_back(peer);
  }
  if (!silent.empty()) return silent;
  return scatter.empty() ? gather : scatter;
}

bool AllreduceOperation::queued_too_long() const {
  return !setting_.behind.empty() && began_ - submitted_ > deadline_ - began_;
}

std::vector<Rank> AllreduceOperation::late_ranks() const {
  return queued_too_long() ? setting_.behind : absent_ranks();
}

void AllreduceOperation::end_at_deadline(Time now) {
  Report& report = call_->report;
  report.late_ranks = late_ranks();
  const std::string detail = fmt::format(
      "no complete answer from {} within the deadline of {} s{}",
      report.late_ranks.empty() ? "the other ranks" : rendezvous::rank_list(report.late_ranks),
      std::chrono::duration<double>(call_->arguments.deadline).count(),
      queued_too_long() ? ": most of it was spent behind earlier calls" : "");
  const std::uint64_t late = mask_of(report.late_ranks);
  if (report.mode == Mode::bounded || late == 0) return end(Status::peer_late, detail, now);
  // An exact call is over for all: the late ranks learn it at once, and the next calls pair.
  report.status = Status::peer_late;
  report.detail = detail + silence_text();
  report_end(now);
  endpoint_.abort(handle_, TARPON_ABORT_LATE, late);
  over_ = true;
}

/// How many ranks answer, when some are silent. An exact call runs to its deadline only while all
/// ranks are live.
std::string AllreduceOperation::silence_text() const {
  const int world = setting_.world;
  const int answering = world - std::popcount(endpoint_.silent());
  if (answering == world) return "";
  return fmt::format("; {}{} of {} ranks answer", 2 * answering <= world ? "cut off: " : "",
                     answering, world);
}

bool AllreduceOperation::step(Time now) {
  if (over_) return true;
  if (now >= fail_at_) {
    end(Status::mismatch, "", now);
    return true;
  }
  if (fail_at_ != kNever) return false;
  if (finishing_) {
    if (drops_copy(now)) work_.clear();
    if (work_.idle()) close(now);
    return over_;
  }
  if (!late_self_) endpoint_.advance(handle_, kGather, reducer_.ready());
  close_for_work(now);
  const bool in_doubt = endpoint_.in_doubt(handle_);
  asks_peers_ |= in_doubt && now >= gather_due_;
  if (!scatter_closed_ || !gather_closed_) return false;
  if (in_doubt) {
    asks_peers_ = true;
    wake_at_ = kNever;  // an answer ends it, or the endpoint's timer
    return false;
  }
  call_->report.in_doubt |= asks_peers_ && now > end_;
  if (whole_since_ == kNever) {
    whole_since_ = now;
    settle_at_ = std::min(limit(), now + settling(now));
  }
  wake_at_ = settle_at_;
  if (!may_finish(now)) return false;
  finish(now);
  return over_;
}

/// How long confirmations may save the copy of our shard. A bounded call that something is missing
/// from has come to its bound.
Duration AllreduceOperation::settling(Time now) const {
  if (call_->report.mode == Mode::exact) return std::max(kLeastSettling, (now - submitted_) / 8);
  return gather_complete_ ? kLeastSettling : Duration::zero();
}

/// Whether peers can still have our shard once this call has ended: it is retained, and what is
/// missing of the gather is asked for.
bool AllreduceOperation::serves_afterwards() const {
  const bool asked_for = setting_.mechanisms.repair || call_->report.mode == Mode::exact;
  return retains() && asked_for;
}

/// When the call ends whatever it still waits for: a bounded one at its bound, unless this rank is
/// late.
Time AllreduceOperation::limit() const {
  return late_self_ ? deadline_ : std::min(deadline_, end_);
}

/// Peers may still ask for our shard: they confirm it, or it is copied. Confirmations usually come
/// within the time that the copy would cost.
bool AllreduceOperation::may_finish(Time now) {
  Time patience = call_->report.mode == Mode::bounded ? settle_at_ : deadline_;
  // Over before its bound, for want of a rank that is gone: our shard still has to go out.
  if (!late_self_ && call_->report.stages[kGather].closing != Closing::bound) {
    patience = std::max(patience, whole_since_ + kLeastSettling);
  }
  // Nobody can have the shard afterwards: the peers wait for it until their bounds. The same holds
  // where the call has no time for a copy.
  if (!serves_afterwards()) {
    patience = limit();
  } else if (!copies()) {
    patience = limit() - work_left(false);
  }
  patience = std::min(patience, limit());
  // What is waited for beyond that comes by packets.
  if (now >= settle_at_) wake_at_ = now < patience ? patience : limit();
  if (unheard()) return false;
  if (schedule_.own.count == 0 || confirmed()) return true;
  if (now < patience && !endpoint_.sent(handle_, kGather)) return false;
  if (schedule_.own.count > kConfirmAbove && now < settle_at_) return false;
  // A bounded call does not wait for ranks that are behind: its shard is not kept for them then.
  return call_->report.mode == Mode::bounded || endpoint_.may_retain(schedule_.own.count) ||
         now >= deadline_;
}

/// An exact call of 0 elements moves no data, but the ranks still have to agree that it is one.
bool AllreduceOperation::unheard() const {
  if (call_->arguments.count > 0 || call_->report.mode == Mode::bounded) return false;
  for (const TarSchedule::Transfer& transfer : schedule_.stages[kScatter].receives) {
    if (!endpoint_.progress(handle_, kScatter, transfer.peer).heard) return true;
  }
  return false;
}

bool AllreduceOperation::confirmed() const {
  return schedule_.own.count > kConfirmAbove && endpoint_.acknowledged(handle_, kGather);
}

Time AllreduceOperation::next_deadline() const {
  return fail_at_ == kNever ? wake_at_ : fail_at_;
}

/// Exact calls cannot do without.
bool AllreduceOperation::retains() const {
  return setting_.mechanisms.retention || call_->report.mode == Mode::exact;
}

/// Whether our shard is copied for peers that may still ask for it. A bounded call makes no copy
/// that would take more than an eighth of its bound: that time is worth more for data.
bool AllreduceOperation::copies() const {
  if (schedule_.own.count == 0 || late_self_ || !retains() || confirmed()) return false;
  if (end_ == kNever || schedule_.own.count <= setting_.piece_bytes) return true;
  return setting_.work_rate->of(schedule_.own.count) <= (end_ - clock_) / 8;
}

/// Whether the copy ends unfinished. It does when nobody needs it. It also does when the rest of
/// the call's work takes all of the time until the end, and the rest of the copy takes more than a
/// moment: a copy into memory that was never touched takes many times as long as the work before.
/// The faster one of the latest two pieces tells the speed, because a pause makes single pieces
/// slow.
bool AllreduceOperation::drops_copy(Time now) const {
  if (confirmed()) return true;
  const Time end = limit();
  if (call_->report.mode != Mode::bounded || end == kNever) return false;
  if (!retained_) return false;
  const std::uint64_t left = schedule_.own.count - retained_->bytes.size();
  const Duration piece = std::min(latest_pieces_[0], latest_pieces_[1]);
  const Duration takes = (left + setting_.piece_bytes - 1) / setting_.piece_bytes * piece;
  return now >= end - work_left(false) && takes > std::min(kLongestOverrun, (end - clock_) / 8);
}

/// The scatter has closed: rescales the slots of our shard that lack contributions, as work. Work
/// that was dropped halfway may be added again: it goes on at the first slot that is not ready.
void AllreduceOperation::settle() {
  work_.add(reducer_.slots() - reducer_.ready(), slot_bytes(),
            [this](std::uint64_t, std::uint64_t count) {
              reducer_.settle(static_cast<std::uint32_t>(count));
            });
}

/// Copies our shard for the peers. Throws what the memory throws, before anything is copied.
void AllreduceOperation::retain() {
  if (!copies()) return;
  retained_ = std::make_unique<Retained>(setting_.memory);
  retained_->stage = kGather;
  retained_->bytes.reserve(schedule_.own.count);
  retained_->contributors.reserve(reducer_.slots());
  work_.add(reducer_.slots(), slot_bytes(), [this](std::uint64_t first, std::uint64_t count) {
    const SlotArray<std::byte> own = slots_at(schedule_.own.first);
    for (auto slot = static_cast<std::uint32_t>(first); slot < first + count; ++slot) {
      const std::byte* const bytes = own[slot];
      retained_->bytes.insert(retained_->bytes.end(), bytes,
                              bytes + slot_length(schedule_.own.count, slot_bytes(), slot));
      retained_->contributors.push_back(reducer_.contributors()[slot]);
    }
  });
}

/// The result is whole, or all that will come is here. It ends at once, or when our shard is
/// copied.
void AllreduceOperation::finish(Time now) {
  if (finishing_) return;
  finishing_ = true;
  wake_at_ = kNever;
  try {
    retain();
  } catch (const std::bad_alloc&) {
    // Peers that lack this shard could not have it any more.
    return end_aborted(AbortReason::memory, bit(setting_.rank),
                       "allreduce: no memory to keep this rank's part for the peers", now);
  } catch (const std::exception& error) {
    return end_aborted(AbortReason::exception, bit(setting_.rank),
                       fmt::format("allreduce: {}", error.what()), now);
  }
  if (work_.idle()) close(now);
}

void AllreduceOperation::close(Time now) {
  const bool whole = retained_ && retained_->contributors.size() == reducer_.slots();
  if (late_self_ || confirmed() || !whole) retained_.reset();
  report_end(now);
  if (call_->report.mode == Mode::bounded) {
    report_loss();
    report_nonfinite();
    if (retained_ && !endpoint_.may_retain(retained_->bytes.size())) {
      held_back_by_ = endpoint_.holding_back();
      retained_.reset();
    }
  }
  if (!late_self_ && !waited_in_vain_) {
    take_sample();
    learn_losses();
  }
  endpoint_.close(handle_, std::move(retained_), absent());
  over_ = true;
}

/// Owners of which nothing is to be had.
std::uint64_t AllreduceOperation::absent() const {
  if (call_->report.mode == Mode::exact || !retains()) return 0;
  std::uint64_t ranks = late_self_ ? bit(setting_.rank) : 0;
  for (const TarSchedule::Transfer& transfer : schedule_.stages[kGather].receives) {
    const MessageProgress message = endpoint_.progress(handle_, kGather, transfer.peer);
    if (message.slots > 0 && message.received == 0) ranks |= bit(transfer.peer);
  }
  return ranks;
}

Time AllreduceOperation::release_by() const {
  if (completing_) return kNever;
  // What a complete call still has to send others wait for; to the rest somebody was late already.
  return call_->report.status == Status::complete ? limit() : Time::min();
}

bool AllreduceOperation::complete(Time now) {
  if (completing_) {
    if (!work_.idle()) return false;
    call_->report.elapsed = now - submitted_;
    return true;
  }
  completing_ = true;
  work_.clear();  // a copy of our shard that the end of the call has come before
  // In place, what is filled here was lent for the scatter.
  const Status status = call_->report.status;
  const bool ended =
      status == Status::complete || status == Status::partial || status == Status::late_self;
  if (ended && scatter_closed_ && !call_->report.nonfinite) settle();
  if (call_->report.nonfinite) {
    fill_with_nan();
  } else if (coding_) {
    if (ended) decode_result();
  } else if (status == Status::partial || status == Status::late_self) {
    fill_missing();
  }
  return work_.idle();
}

void AllreduceOperation::release(Time now) {
  if (sample_) learn(now);
  call_->done = true;
}

void AllreduceOperation::complete_at_once(Time now) {
  while (!complete(now)) work_.run_all();
}

Piece AllreduceOperation::take_piece() {
  const Piece piece = work_.take();
  worked_bytes_ += piece.bytes;
  return piece;
}

void AllreduceOperation::piece_ended(Duration took) {
  work_.ended();
  worked_ += took;
  if (!finishing_ || over_) return;
  latest_pieces_ = {latest_pieces_[1], took};
}

bool AllreduceOperation::is_cut() const {
  return call_->report.stages[kGather].closing == Closing::bound && whole_since_ != kNever &&
         serves_afterwards();  // else it waits until its limit
}

void AllreduceOperation::end(Status status, std::string detail, Time now) {
  if (over_) return;
  Report& report = call_->report;
  report.status = status;
  if (!detail.empty()) report.detail = std::move(detail);
  report_end(now);
  if (status == Status::mismatch) {
    // Ranks that have not begun learn it too.
    endpoint_.abort(handle_, TARPON_ABORT_MISMATCH, bit(setting_.rank));
  } else {
    // Nothing is to be had of our shard. Exact calls wait for it until their deadlines.
    endpoint_.close(handle_, nullptr, report.mode == Mode::bounded ? bit(setting_.rank) : 0);
  }
  over_ = true;
}

void AllreduceOperation::give_up(Rank origin, const std::string& detail, Time now) {
  end_aborted(AbortReason::given_up, bit(origin), detail, now);
}

void AllreduceOperation::peers_gone(const Facts& facts, Time now) {
  if (over_ || call_->report.mode == Mode::bounded) return;
  if (scatter_closed_ && gather_closed_ && !unheard()) return;
  std::vector<Rank> gone;
  Standing highest = Standing::live;
  std::string text;
  for (Rank rank = 0; rank < setting_.world; ++rank) {
    if (!endpoint_.takes_no_part(handle_, rank)) continue;
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

void AllreduceOperation::evicted(const std::string& detail, Time now) {
  if (over_) return;
  if (fail_at_ != kNever) return end(Status::mismatch, "", now);
  if (finishing_ || (scatter_closed_ && gather_closed_ && !unheard())) return finish(now);
  call_->report.blamed = {setting_.rank};
  end(Status::evicted, detail, now);
}

}  // namespace tarpon
