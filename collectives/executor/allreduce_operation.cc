#include "collectives/executor/allreduce_operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tarpon {
namespace {

// After the first mismatch others may still come in: their ranks belong into the report.
constexpr Duration kMismatchGrace = 50ms;

// Sending the last packets takes a moment even when the result was complete at once.
constexpr Duration kLeastSettling = 1ms;

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
                                       Endpoint& endpoint, Time submitted, Time now)
    : setting_(setting),
      call_(std::move(call)),
      endpoint_(endpoint),
      input_(static_cast<const std::byte*>(call_->arguments.input)),
      output_(static_cast<std::byte*>(call_->arguments.output)),
      coding_(make_coding()),
      schedule_(make_schedule()),
      reducer_(reducer_shape(
          effective_mode(call_->arguments, endpoint.next_number(call_->arguments.tag)))),
      submitted_(submitted),
      began_(now),
      late_before_(endpoint.counters()[DropReason::closed]),
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
    if (!coding_->encode(reinterpret_cast<const float*>(input_))) call_->nonfinite = true;
  }
  handle_ = endpoint_.submit(specify(now), now);
}

void AllreduceOperation::on_event(const Event& event, Time now) {
  switch (event.kind) {
    case Event::Kind::stage_closed:
      call_->report.stages[event.stage].closing = event.closing;
      call_->report.stages[event.stage].elapsed = event.elapsed;
      if (event.stage == kScatter) {
        scatter_closed_ = true;
        if (event.closing != Closing::complete) reducer_.settle();
      } else {
        gather_closed_ = true;
        gather_complete_ = event.closing == Closing::complete;
      }
      break;
    case Event::Kind::acknowledged:
      break;  // step() asks the endpoint
    case Event::Kind::mismatch: {
      call_->report.blamed.push_back(event.peer);
      const auto theirs = decode(event.signature);
      const auto difference = theirs ? first_difference(signature(), *theirs) : std::nullopt;
      if (call_->report.blamed.size() == 1) {
        call_->report.detail = fmt::format("rank {} differs: {}", event.peer,
                                           difference.value_or("unknown operation"));
      }
      if (fail_at_ == kNever) fail_at_ = now + kMismatchGrace;
      break;
    }
    case Event::Kind::aborted:
      on_abort(event, now);
      break;
    case Event::Kind::epoch:
      break;  // the engine's
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

void AllreduceOperation::on_abort(const Event& event, Time now) {
  // A result that is there needs nobody any more; one of 0 elements needs everybody's word.
  if (scatter_closed_ && gather_closed_ && call_->arguments.count > 0) return;
  if (event.reason == TARPON_ABORT_MISMATCH) {
    // Whoever differs will say so itself, unless it has gone.
    if (fail_at_ != kNever) return;
    fail_at_ = now + kMismatchGrace;
    call_->report.detail =
        fmt::format("rank {} met another operation under this number", event.peer);
    return;
  }
  call_->report.blamed.push_back(event.peer);
  if (over_) return;
  call_->report.status = Status::aborted;
  call_->report.detail = fmt::format("rank {} gave the operation up", event.peer);
  report_end(now);
  // Passed on: who missed it would wait for us.
  endpoint_.abort(handle_, event.reason, event.peer);
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
  call_->report.late_ranks = late_ranks();
  end(Status::peer_late,
      fmt::format("no complete answer from rank {} within the deadline of {} s{}",
                  fmt::join(call_->report.late_ranks, ", "),
                  std::chrono::duration<double>(call_->arguments.deadline).count(),
                  queued_too_long() ? ": most of it was spent behind earlier calls" : ""),
      now);
}

bool AllreduceOperation::step(Time now) {
  if (over_) return true;
  if (now >= fail_at_) {
    end(Status::mismatch, "", now);
    return true;
  }
  if (fail_at_ != kNever) return false;
  if (!late_self_) endpoint_.advance(handle_, kGather, reducer_.ready());
  if (!scatter_closed_ || !gather_closed_ || endpoint_.in_doubt(handle_)) return false;
  if (whole_since_ == kNever) {
    whole_since_ = now;
    settle_at_ = std::min(deadline_, now + settling(now));
    wake_at_ = settle_at_;
  }
  if (!may_finish(now)) return false;
  finish(now);
  return true;
}

/// How long confirmations may save the copy of our shard. A bounded call that something is missing
/// from has come to its bound.
Duration AllreduceOperation::settling(Time now) const {
  if (call_->report.mode == Mode::exact) return std::max(kLeastSettling, (now - submitted_) / 8);
  return gather_complete_ ? kLeastSettling : Duration::zero();
}

/// Peers may still ask for our shard: they confirm it, or it is copied. Confirmations usually come
/// within the time that the copy would cost.
bool AllreduceOperation::may_finish(Time now) {
  Time patience = call_->report.mode == Mode::bounded ? settle_at_ : deadline_;
  // Over before its bound, for want of a rank that is gone: our shard still has to go out.
  if (!late_self_ && call_->report.stages[kGather].closing != Closing::bound) {
    patience = std::max(patience, whole_since_ + kLeastSettling);
  }
  // What is not kept cannot be had afterwards.
  if (!retains()) patience = after(whole_since_, call_->report.stages[kGather].bound);
  patience = std::min(patience, deadline_);
  // What is waited for beyond that comes by packets.
  if (now >= settle_at_) wake_at_ = now < patience ? patience : deadline_;
  if (unheard()) return false;
  if (schedule_.own.count == 0 || confirmed()) return true;
  if (now < patience && !endpoint_.sent(handle_, kGather)) return false;
  if (schedule_.own.count > kConfirmAbove && now < settle_at_) return false;
  return endpoint_.may_retain(call_->arguments.tag, schedule_.own.count) || now >= deadline_;
}

/// An exact call of 0 elements moves no data, but the ranks still have to agree that it is one.
bool AllreduceOperation::unheard() const {
  if (call_->arguments.count > 0 || call_->report.mode == Mode::bounded) return false;
  for (const Schedule::Transfer& transfer : schedule_.stages[kScatter].receives) {
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

std::unique_ptr<Retained> AllreduceOperation::retain() const {
  if (schedule_.own.count == 0 || late_self_ || !retains() || confirmed()) return nullptr;
  auto retained = std::make_unique<Retained>();
  retained->stage = kGather;
  const SlotArray<std::byte> own = slots_at(schedule_.own.first);
  retained->bytes.reserve(schedule_.own.count);
  for (std::uint32_t slot = 0; slot < reducer_.slots(); ++slot) {
    const std::byte* const bytes = own[slot];
    retained->bytes.insert(retained->bytes.end(), bytes,
                           bytes + slot_length(schedule_.own.count, slot_bytes(), slot));
  }
  retained->contributors = reducer_.contributors();
  return retained;
}

void AllreduceOperation::finish(Time now) {
  auto retained = retain();
  report_end(now);
  if (call_->report.mode == Mode::bounded) {
    report_loss();
    report_nonfinite();
    const std::uint32_t tag = call_->arguments.tag;
    const bool full = retained && !endpoint_.may_retain(tag, retained->bytes.size());
    if (full) wish_ = endpoint_.holding_back(tag);
  }
  if (!late_self_ && !waited_in_vain_) {
    learn();
    learn_losses();
  }
  endpoint_.close(handle_, std::move(retained), absent());
  over_ = true;
}

/// Owners of which nothing is to be had.
std::uint64_t AllreduceOperation::absent() const {
  if (call_->report.mode == Mode::exact || !retains()) return 0;
  std::uint64_t ranks = late_self_ ? bit(setting_.rank) : 0;
  for (const Schedule::Transfer& transfer : schedule_.stages[kGather].receives) {
    const MessageProgress message = endpoint_.progress(handle_, kGather, transfer.peer);
    if (message.slots > 0 && message.received == 0) ranks |= bit(transfer.peer);
  }
  return ranks;
}

Time AllreduceOperation::release_by() const {
  // What a complete call still has to send others wait for; to the rest somebody was late already.
  return call_->report.status == Status::complete ? deadline_ : Time::min();
}

void AllreduceOperation::release() {
  // In place, what is filled here was lent for the scatter.
  const Status status = call_->report.status;
  const bool ended =
      status == Status::complete || status == Status::partial || status == Status::late_self;
  if (call_->report.nonfinite) {
    fill_with_nan();
  } else if (coding_) {
    if (ended) decode_result();
  } else if (status == Status::partial || status == Status::late_self) {
    fill_missing();
  }
  call_->done = true;
}

void AllreduceOperation::end(Status status, std::string detail, Time now) {
  if (over_) return;
  Report& report = call_->report;
  report.status = status;
  if (!detail.empty()) report.detail = std::move(detail);
  report_end(now);
  if (status == Status::mismatch) {
    endpoint_.abort(handle_, TARPON_ABORT_MISMATCH,
                    setting_.rank);  // ranks that have not begun learn it too
  } else {
    // Nothing is to be had of our shard. Exact calls wait for it until their deadlines.
    endpoint_.close(handle_, nullptr, report.mode == Mode::bounded ? bit(setting_.rank) : 0);
  }
  over_ = true;
}

void AllreduceOperation::give_up(Rank origin, const std::string& detail, Time now) {
  if (over_) return;
  Report& report = call_->report;
  report.status = Status::aborted;
  report.blamed = {origin};
  report.detail = detail;
  report_end(now);
  endpoint_.abort(handle_, TARPON_ABORT_GIVEN_UP, origin);
  over_ = true;
}

void AllreduceOperation::peers_died(const Deaths& deaths, Time now) {
  if (over_ || call_->report.mode == Mode::bounded) return;
  if (scatter_closed_ && gather_closed_ && !unheard()) return;
  call_->report.blamed = deaths.ranks;
  end(deaths.status(), deaths.text, now);
}

void AllreduceOperation::evicted(const std::string& detail, Time now) {
  if (over_) return;
  if (scatter_closed_ && gather_closed_ && !unheard()) return finish(now);
  call_->report.blamed = {setting_.rank};
  end(Status::evicted, detail, now);
}

}  // namespace tarpon
