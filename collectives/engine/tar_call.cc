#include "collectives/engine/tar_call.h"

#include <algorithm>

namespace tarpon {
namespace {

// The longest time that the copy of our shard may still take when the rest of the work needs the
// time until the end of the call.
constexpr Duration kLongestOverrun = 4ms;

}  // namespace

TarCall::TarCall(const Setting& setting, std::shared_ptr<PendingCall> call,
                 std::unique_ptr<Coding> coding, Endpoint& endpoint, Time submitted, Time now)
    : RunningCall(setting, std::move(call), endpoint, submitted, now),
      input_(static_cast<const std::byte*>(call_->arguments.input)),
      output_(static_cast<std::byte*>(call_->arguments.output)),
      coding_(std::move(coding)),
      shards_(make_shards()),
      reducer_(reducer_shape(call_->report.mode)),
      gone_(setting.absent) {
  Report& report = call_->report;
  if (report.mode == Mode::bounded) {
    report.rescale = setting.mechanisms.rescale;
    report.weights = reducer_.weights();
    report.epoch = setting.epoch.number;
  }
  if (coding_) {
    report.coded = CodedBucket{coding_->layout(), coding_->key()};
    if (!coding_->finite()) call_->nonfinite = true;
  }
  open(specify(now), now);
}

TarCall::~TarCall() {
  if (partials_) setting_.partial_buffers->release(std::move(*partials_));
}

void TarCall::on_progress(const Event& event, Time now) {
  switch (event.kind) {
    case Event::Kind::stage_closed:
      if (event.stage == kGather) {
        gather_complete_ = event.closing == Closing::complete;
      } else if (event.closing != Closing::complete) {
        settle();
      }
      return;
    case Event::Kind::acknowledged:
      delivered_ = now;  // for learn(); advance() asks the endpoint itself
      return;
    case Event::Kind::clock:
      return start_clock(event.at, now);
    case Event::Kind::extended:
      return extend(event.elapsed, now);
    case Event::Kind::late:
      late_self_ = true;
      return;
    default:
      return;  // RunningCall handles the others
  }
}

bool TarCall::advance(Time now) {
  if (finishing_) {
    if (drops_copy(now)) work_.clear();
    if (work_.idle()) end_whole(now);
    return over();
  }
  if (!late_self_) endpoint_.advance(handle(), kGather, reducer_.ready());
  close_for_work(now);
  const bool in_doubt = endpoint_.in_doubt(handle());
  asks_peers_ |= in_doubt && now >= gather_due_;
  if (!all_closed()) return false;
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
  return over();
}

/// How long to wait for confirmations that save the copy of our shard. A bounded call that lacks
/// data has reached its bound.
Duration TarCall::settling(Time now) const {
  if (call_->report.mode == Mode::exact) return std::max(kLeastSettling, (now - submitted_) / 8);
  return gather_complete_ ? kLeastSettling : Duration::zero();
}

/// Whether peers can still get our shard once this call has ended: it is retained, and they ask for
/// missing data of the gather.
bool TarCall::serves_afterwards() const {
  const bool asked_for = setting_.mechanisms.repair || call_->report.mode == Mode::exact;
  return retains() && asked_for;
}

/// When the call ends whatever it still waits for: a bounded one at its bound, unless this rank is
/// late.
Time TarCall::limit() const {
  return late_self_ ? deadline_ : std::min(deadline_, end_);
}

/// Whether the call may end. Peers may still ask for our shard, so they have to confirm it, or it
/// is copied. Confirmations usually come within the time that the copy would cost.
bool TarCall::may_finish(Time now) {
  Time patience = call_->report.mode == Mode::bounded ? settle_at_ : deadline_;
  // The call is over before its bound, because a rank is gone: our shard still has to be sent.
  if (!late_self_ && call_->report.stages[kGather].closing != Closing::bound) {
    patience = std::max(patience, whole_since_ + kLeastSettling);
  }
  // No peer can get the shard afterwards: the peers wait for it until their bounds. The same holds
  // if the call has no time for a copy.
  if (!serves_afterwards()) {
    patience = limit();
  } else if (!copies()) {
    patience = limit() - work_left(false);
  }
  patience = std::min(patience, limit());
  // After that only packets can end the wait.
  if (now >= settle_at_) wake_at_ = now < patience ? patience : limit();
  if (unheard()) return false;
  if (shards_.own.count == 0 || confirmed()) return true;
  if (now < patience && !endpoint_.sent(handle(), kGather)) return false;
  if (shards_.own.count > kConfirmAbove && now < settle_at_) return false;
  // A bounded call does not wait for ranks that are behind: its shard is not kept for them then.
  return call_->report.mode == Mode::bounded || endpoint_.may_retain(shards_.own.count) ||
         now >= deadline_;
}

bool TarCall::confirmed() const {
  return shards_.own.count > kConfirmAbove && endpoint_.acknowledged(handle(), kGather);
}

/// Whether our shard is retained. Exact calls cannot do without that.
bool TarCall::retains() const {
  return setting_.mechanisms.retention || call_->report.mode == Mode::exact;
}

/// Whether our shard is copied for peers that may still ask for it. A bounded call makes no copy
/// that would take more than an eighth of its bound: that time is worth more for data.
bool TarCall::copies() const {
  if (shards_.own.count == 0 || late_self_ || !retains() || confirmed()) return false;
  if (end_ == kNever || shards_.own.count <= setting_.piece_bytes) return true;
  return setting_.work_rate->of(shards_.own.count) <= (end_ - clock_) / 8;
}

/// Whether the copy ends unfinished. It does when no peer needs it. It also does when the rest of
/// the call's work takes all of the time until the end, and the rest of the copy takes more than a
/// moment: a copy into memory that was never touched takes many times as long as the work before.
bool TarCall::drops_copy(Time now) const {
  if (confirmed()) return true;
  const Time end = limit();
  if (call_->report.mode != Mode::bounded || end == kNever) return false;
  if (!retained_) return false;
  const std::uint64_t left = shards_.own.count - retained_->bytes.size();
  const Duration takes = (left + setting_.piece_bytes - 1) / setting_.piece_bytes * work_.pace();
  return now >= end - work_left(false) && takes > std::min(kLongestOverrun, (end - clock_) / 8);
}

/// Rescales the slots of our shard that lack contributions, as work, after the scatter has closed.
/// Work that was dropped halfway may be added again: it goes on at the first slot that is not
/// ready.
void TarCall::settle() {
  work_.add(reducer_.slots() - reducer_.ready(), slot_bytes(),
            [this](std::uint64_t, std::uint64_t count) {
              reducer_.settle(static_cast<std::uint32_t>(count));
            });
}

/// Copies our shard for the peers. Throws the exceptions of the memory resource, before anything is
/// copied.
void TarCall::retain() {
  if (!copies()) return;
  retained_ = std::make_unique<Retained>(setting_.memory);
  retained_->stage = kGather;
  retained_->bytes.reserve(shards_.own.count);
  retained_->contributors.reserve(reducer_.slots());
  work_.add(reducer_.slots(), slot_bytes(), [this](std::uint64_t first, std::uint64_t count) {
    const SlotArray<std::byte> own = slots_at(shards_.own.first);
    for (auto slot = static_cast<std::uint32_t>(first); slot < first + count; ++slot) {
      const std::byte* const bytes = own[slot];
      retained_->bytes.insert(retained_->bytes.end(), bytes,
                              bytes + slot_length(shards_.own.count, slot_bytes(), slot));
      retained_->contributors.push_back(reducer_.contributors()[slot]);
    }
  });
}

/// Ends the call at once, or when our shard is copied. Its result is whole, or no more data will
/// come.
void TarCall::finish(Time now) {
  if (finishing_) return;
  finishing_ = true;
  work_.restart_pace();
  wake_at_ = kNever;
  if (!copy_for_peers([this] { retain(); }, now)) return;
  if (work_.idle()) end_whole(now);
}

void TarCall::end_whole(Time now) {
  const bool whole = retained_ && retained_->contributors.size() == reducer_.slots();
  if (late_self_ || confirmed() || !whole) retained_.reset();
  report_end(now);
  if (call_->report.mode == Mode::bounded) {
    if (clock_ == kNever || now - clock_ <= call_->report.bound) call_->report.held = {};
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
  close(std::move(retained_), absent());
}

/// Owners whose shards are not available.
std::uint64_t TarCall::absent() const {
  if (call_->report.mode == Mode::exact || !retains()) return 0;
  std::uint64_t ranks = late_self_ ? bit(setting_.rank) : 0;
  for (const TarShards::Shard& shard : shards_.others) {
    const MessageProgress message = endpoint_.progress(handle(), kGather, shard.owner);
    if (message.slots > 0 && message.received == 0) ranks |= bit(shard.owner);
  }
  return ranks;
}

void TarCall::complete_output() {
  // In place, the memory that is filled here was lent for the scatter.
  const Status status = call_->report.status;
  const bool ended =
      status == Status::complete || status == Status::partial || status == Status::late_self;
  if (ended && closed(kScatter) && !call_->report.nonfinite) settle();
  if (call_->report.nonfinite) {
    fill_with_nan();
  } else if (coding_) {
    if (ended) decode_result();
  } else if (status == Status::partial || status == Status::late_self) {
    fill_missing();
  }
}

void TarCall::released(Time now) {
  if (sample_) learn(now);
}

std::optional<Time> TarCall::cut_at() const {
  const bool cut = call_->report.stages[kGather].closing == Closing::bound &&
                   whole_since_ != kNever && serves_afterwards();  // else it waits until its limit
  return cut ? std::optional(whole_since_) : std::nullopt;
}

}  // namespace tarpon
