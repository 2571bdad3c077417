#include "collectives/engine/bounded/tar_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "collectives/engine/bounded/loss_account.h"
#include "collectives/rank_list.h"

namespace tarpon {
namespace {

// The longest time that the copy of our shard may still take when the rest of the work needs the
// time until the end of the call.
constexpr Duration kLongestOverrun = 4ms;

}  // namespace

TarCall::TarCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                 std::unique_ptr<Coding> coding, Endpoint& endpoint, Time submitted, Time now)
    : TarCall(setting, call, std::move(coding), endpoint, submitted, now, nullptr) {
  open(specify(now), signature(), now);
}

TarCall::TarCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                 std::unique_ptr<Coding> coding, Endpoint& endpoint, Time submitted, Time now,
                 const OverHosts* hosts)
    : ClockedCall(setting, call, endpoint, submitted, now,
                  kind_of(setting, *call, coding != nullptr, hosts != nullptr),
                  // Decoding takes about as long as encoding took.
                  coding != nullptr ? 2 * (now - setting.began) : Duration::zero()),
      coding_(std::move(coding)),
      layout_(hosts != nullptr
                  ? hosts->layout
                  : CallLayout(call_->arguments, coding_.get(), setting.world, setting.rank,
                               setting.mechanisms.rotation
                                   ? endpoint.tags().next_number(call_->arguments.tag)
                                   : 0,
                               setting.slot_bytes)),
      near_(hosts == nullptr ? nullptr : &hosts->near),
      reducer_(reducer_shape(call_->report.mode, hosts)),
      output_({.arguments = call_->arguments,
               .layout = layout_,
               .reducer = reducer_,
               .gather = gather_,
               .rank = setting.rank,
               .world = setting.world,
               .rescale = setting.mechanisms.rescale,
               .work = work_}) {
  Report& report = call_->report;
  report.algorithm = near_ != nullptr ? Algorithm::hosts : Algorithm::tar;
  if (report.mode == Mode::bounded) report.rescale = setting.mechanisms.rescale;
  if (coding_) {
    report.coded = CodedBucket{coding_->layout(), coding_->key()};
    if (!coding_->finite()) call_->nonfinite = true;
  }
}

TarCall::~TarCall() {
  if (partials_) setting_.partial_buffers->release(std::move(*partials_));
  if (parked_) setting_.partial_buffers->release(std::move(*parked_));
}

/// Takes the buffers that the reducer needs.
Reducer::Shape TarCall::reducer_shape(Mode mode, const OverHosts* hosts) {
  const Range own = layout_.shards().own;
  Reducer::Shape shape;
  shape.accumulator = layout_.result_at(own.first);
  shape.own = layout_.input_at(own.first);
  shape.bytes = own.count;
  shape.slot_bytes = layout_.slot_bytes();
  shape.type = call_->arguments.type;
  shape.function = call_->arguments.function;
  shape.rank = setting_.rank;
  shape.world = setting_.world;
  shape.memory = setting_.memory;
  if (mode == Mode::bounded) shape.rescale = setting_.mechanisms.rescale;
  const std::uint64_t elements = shape.bytes / element_bytes(shape.type);
  std::uint32_t parties = shape.world;
  if (hosts != nullptr) {
    shape.senders = hosts->senders;
    for (Rank rank = 0; rank < shape.world; ++rank) {
      shape.carried.push_back(layout_.carried_by(rank));
    }
    parties = static_cast<std::uint32_t>(std::popcount(shape.senders));
    shape.function = HostPlan::function_over_hosts(call_->arguments);
    parked_ = setting_.partial_buffers->allocate(Reducer::parked_floats(shape.type, elements));
    shape.parked = parked_->get();
  }
  if (Reducer::uses_partials(shape.type, shape.function, parties)) {
    partials_ = setting_.partial_buffers->allocate(elements);
    shape.partials = partials_->get();
  }
  return shape;
}

CallKind TarCall::kind_of(const Setting& setting, const PendingCall& call, bool coded,
                          bool over_hosts) {
  const CollectiveParts* const parts = call.arguments.parts.get();
  return {.bytes = bucket_bytes(call.arguments),
          .coded = coded,
          .open = setting.open,
          .over_hosts = over_hosts,
          .collective = parts == nullptr ? Collective::allreduce : parts->collective};
}

OperationSignature TarCall::signature() const {
  OperationSignature result = clocked_signature(layout_.slot_bytes());
  if (!coding_ && layout_.gathers()) result.shares = call_->arguments.shares.hash();
  result.codec = coding_ ? Codec::hadamard : Codec::none;
  return result;
}

OperationSpec TarCall::specify(Time now) {
  OperationSpec spec = common_spec(layout_.slot_bytes(), now);
  if (coding_) spec.epoch.form_details = static_cast<std::uint16_t>(coding_->layout().stride);
  spec.marked = call_->nonfinite;
  spec.asks_if_late = retains();
  spec.awaits_confirmations = !layout_.gathers();
  spec.stages.resize(2);
  add_scatter(spec);
  if (layout_.gathers()) add_gather(spec);
  return spec;
}

void TarCall::add_scatter(OperationSpec& spec) {
  const TarShards& shards = layout_.shards();
  StageSpec& stage = spec.stages[kScatter];
  stage.repair = setting_.mechanisms.scatter_repair;
  stage.acknowledge = !layout_.gathers();
  scatter_.reserve(shards.others.size());
  for (auto to = shards.others.rbegin(); to != shards.others.rend(); ++to) {
    if (!layout_.is_partner(to->owner)) continue;
    stage.sends.push_back({to->owner, &contribution_to(*to), to->range.count});
    call_->report.bytes_sent += to->range.count;
  }
  for (const TarShards::Shard& from : shards.others) {
    if (!layout_.is_partner(from.owner)) continue;
    stage.receives.push_back({from.owner, &reducer_, shards.own.count});
  }
}

Source& TarCall::contribution_to(const TarShards::Shard& shard) {
  if (near_ != nullptr) return near_->source(layout_.input_at(shard.range.first));
  return scatter_.emplace_back(layout_.input_at(shard.range.first), bit(setting_.rank));
}

void TarCall::add_gather(OperationSpec& spec) {
  const TarShards& shards = layout_.shards();
  StageSpec& stage = spec.stages[kGather];
  stage.ready = 0;
  stage.alike = true;
  stage.repair = setting_.mechanisms.repair;
  // Both ends of a message see the same size, so they agree on whether it is confirmed.
  std::uint64_t longest = shards.own.count;
  for (const TarShards::Shard& from : shards.others) {
    longest = std::max(longest, from.range.count);
  }
  stage.acknowledge = longest > kConfirmAbove;
  for (auto to = shards.others.rbegin(); to != shards.others.rend(); ++to) {
    if (!layout_.is_partner(to->owner)) continue;
    stage.sends.push_back({to->owner, &reducer_, shards.own.count});
    call_->report.bytes_sent += shards.own.count;
  }
  gather_.reserve(shards.others.size());
  for (const TarShards::Shard& from : shards.others) {
    gather_.emplace_back(layout_.result_at(from.range.first),
                         slots(from.range.count, layout_.slot_bytes()), setting_.memory);
    ReceiveSpec receive{from.owner, &gather_.back(), from.range.count};
    receive.if_late = !layout_.is_partner(from.owner);
    stage.receives.push_back(receive);
  }
}

void TarCall::on_progress(const Event& event, Time now) {
  if (event.kind != Event::Kind::stage_closed) return ClockedCall::on_progress(event, now);
  if (event.stage == kGather) {
    gather_complete_ = event.closing == Closing::complete;
  } else if (event.closing != Closing::complete) {
    settle_due_ = true;
    settle_if_due();
  }
}

bool TarCall::advance(Time now) {
  if (finishing_) {
    if (drops_copy(now)) work_.clear();
    if (work_.idle()) end_whole(now);
    return over();
  }
  settle_if_due();
  if (!late_self_) endpoint_.advance(handle(), kGather, reducer_.ready());
  close_for_work(now);
  const bool in_doubt = endpoint_.view(handle()).in_doubt();
  asks_peers_ |= in_doubt && now >= clock_.gather_due();
  if (!closed_.all()) return false;
  if (in_doubt) {
    asks_peers_ = true;
    wake_at_ = kNever;  // an answer ends it, or the endpoint's timer
    return false;
  }
  if (near_ != nullptr && !near_->has_shards(now)) return false;
  call_->report.in_doubt |= asks_peers_ && now > clock_.end();
  if (whole_since_ == kNever) {
    whole_since_ = now;
    settle_at_ = std::min(limit_, now + settling(now));
  }
  wake_at_ = settle_at_;
  if (!may_finish(now)) return false;
  finish(now);
  return over();
}

/// Time for the work on the buffers if both stages closed now: settling, copying our shard if
/// `with_copy`, decoding, and filling the slots that are missing. Zero for small buckets.
Duration TarCall::work_left(bool with_copy) const {
  if (bucket_bytes(call_->arguments) <= setting_.piece_bytes) return Duration::zero();
  std::uint64_t bytes = with_copy ? layout_.shards().own.count : 0;
  bytes += std::uint64_t{reducer_.slots() - reducer_.ready()} * layout_.slot_bytes();
  for (const TarShards::Shard& shard : layout_.shards().others) {
    const MessageProgress message = endpoint_.view(handle()).progress(kGather, shard.owner);
    bytes += std::uint64_t{message.slots - message.received} * layout_.slot_bytes();
  }
  if (coding_) bytes += coding_->layout().all_members() * coding_->block_bytes();
  return setting_.work_rate->of(bytes);
}

void TarCall::close_for_work(Time now) {
  if (late_self_ || closed_.has(layout_.gathers() ? kGather : kScatter)) clock_.stop_looking();
  if (now >= clock_.look_at()) clock_.close_for_work(work_left(copies()), now);
  wake_at_ = clock_.look_at();
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

std::uint64_t TarCall::left_out() const {
  return near_ == nullptr ? 0 : near_->left_out();
}

/// Whether the call may end. Peers may still ask for our shard, so they have to confirm it, or it
/// is copied. Confirmations usually come within the time that the copy would cost.
bool TarCall::may_finish(Time now) {
  if (!layout_.gathers()) return may_finish_confirmed(now);
  Time patience = call_->report.mode == Mode::bounded ? settle_at_ : deadline_;
  // The call is over before its bound, because a rank is gone: our shard still has to be sent.
  if (!late_self_ && call_->report.stages[kGather].closing != Closing::bound) {
    patience = std::max(patience, whole_since_ + kLeastSettling);
  }
  // No peer can get the shard afterwards: the peers wait for it until their bounds. The same holds
  // if the call has no time for a copy.
  if (!serves_afterwards()) {
    patience = limit_;
  } else if (!copies()) {
    patience = limit_ - work_left(false);
  }
  patience = std::min(patience, limit_);
  // After that only packets can end the wait.
  if (now >= settle_at_) wake_at_ = now < patience ? patience : limit_;
  if (blame().unheard()) return false;
  if (layout_.shards().own.count == 0 || confirmed()) return true;
  if (now < patience && !endpoint_.view(handle()).sent(kGather)) return false;
  if (layout_.shards().own.count > kConfirmAbove && now < settle_at_) return false;
  // A bounded call does not wait for ranks that are behind: its shard is not kept for them then.
  return call_->report.mode == Mode::bounded ||
         endpoint_.tags().may_retain(layout_.shards().own.count) || now >= deadline_;
}

/// Over hosts a rank that was left out fetches the shards of all owners.
bool TarCall::confirmed() const {
  if (near_ != nullptr && (reducer_.lacked() | left_out()) != 0) return false;
  return layout_.shards().own.count > kConfirmAbove &&
         endpoint_.view(handle()).acknowledged(kGather);
}

/// Whether our shard is retained. Exact calls cannot do without that.
bool TarCall::retains() const {
  if (!layout_.gathers()) return false;
  return setting_.mechanisms.retention || call_->report.mode == Mode::exact;
}

/// Whether our shard is copied for peers that may still ask for it. A bounded call makes no copy
/// that would take more than an eighth of its bound: that time is worth more for data.
bool TarCall::copies() const {
  if (layout_.shards().own.count == 0 || late_self_ || !retains() || confirmed()) return false;
  if (!clock_.has_started() || layout_.shards().own.count <= setting_.piece_bytes) return true;
  return setting_.work_rate->of(layout_.shards().own.count) <= clock_.whole() / 8;
}

/// Whether the copy ends unfinished. It does when no peer needs it. It also does when the rest of
/// the call's work takes all of the time until the end, and the rest of the copy takes more than a
/// moment: a copy into memory that was never touched takes many times as long as the work before.
bool TarCall::drops_copy(Time now) const {
  if (confirmed()) return true;
  const Time end = limit_;
  if (call_->report.mode != Mode::bounded || end == kNever) return false;
  if (!retained_) return false;
  const std::uint64_t left = layout_.shards().own.count - retained_->bytes.size();
  const Duration takes = (left + setting_.piece_bytes - 1) / setting_.piece_bytes * work_.pace();
  return now >= end - work_left(false) &&
         takes > std::min(kLongestOverrun, (end - clock_.started()) / 8);
}

void TarCall::settle_if_due() {
  if (!settle_due_ || (near_ != nullptr && !near_->has_contributions())) return;
  settle_due_ = false;
  settle();
}

/// Rescales the slots of our shard that lack contributions, as work, after the scatter has closed.
/// Work that was dropped halfway may be added again: it goes on at the first slot that is not
/// ready.
void TarCall::settle() {
  work_.add(reducer_.slots() - reducer_.ready(), layout_.slot_bytes(),
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
  // Other ranks exchange no packets with this one, so they do not tell that they have passed it.
  if (near_ != nullptr) retained_->receivers = layout_.partners() | reducer_.lacked() | left_out();
  retained_->bytes.reserve(layout_.shards().own.count);
  retained_->contributors.reserve(reducer_.slots());
  work_.add(
      reducer_.slots(), layout_.slot_bytes(), [this](std::uint64_t first, std::uint64_t count) {
        const SlotArray<std::byte> own = layout_.result_at(layout_.shards().own.first);
        for (auto slot = static_cast<std::uint32_t>(first); slot < first + count; ++slot) {
          const std::byte* const bytes = own[slot];
          retained_->bytes.insert(retained_->bytes.end(), bytes,
                                  bytes + layout_.length_of(layout_.shards().own.count, slot));
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
  report_clocked_end(now);
  if (call_->report.mode == Mode::bounded) {
    report_result();
    if (retained_ && !endpoint_.tags().may_retain(retained_->bytes.size())) {
      held_back_by_ = endpoint_.tags().holding_back();
      retained_.reset();
    }
  }
  cut_at_ = cut_at();
  take_lesson();
  close(std::move(retained_), absent());
}

void TarCall::report_result() {
  LossAccount({.endpoint = endpoint_,
               .handle = handle(),
               .rank = setting_.rank,
               .world = setting_.world,
               .layout = layout_,
               .reducer = reducer_,
               .gather = gather_,
               .coded = coding_ ? &coding_->layout() : nullptr,
               .gone = gone_,
               .left_out = left_out(),
               .late_self = late_self_,
               .waits_for_live = clock_.waits_for_live()},
              call_->report)
      .fill();
  if (!layout_.gathers()) report_late_begin();
  report_nonfinite();
}

/// A rank for which no peer waited has no data in the result: a mark that it alone knows does not
/// count.
void TarCall::report_nonfinite() {
  const Marks known = endpoint_.view(handle()).marks();
  Report& report = call_->report;
  report.nonfinite = known.heard || (known.any() && !late_self_);
  if (!report.nonfinite) return;
  report.nonfinite_ranks = ranks_of(known.ranks);
  report.detail += fmt::format(
      "{}NaN or infinity in the input of {}: the result is NaN", report.detail.empty() ? "" : "; ",
      report.nonfinite_ranks.empty() ? "an unknown rank"
                                     : rendezvous::rank_list(report.nonfinite_ranks));
}

/// Owners whose shards are not available.
std::uint64_t TarCall::absent() const {
  if (call_->report.mode == Mode::exact || !retains()) return 0;
  std::uint64_t ranks = late_self_ ? bit(setting_.rank) : 0;
  for (const Rank rank : ranks_of(left_out())) {
    const bool heard = endpoint_.view(handle()).progress(kScatter, rank).heard;
    if ((gone_ & bit(rank)) != 0 || !heard) ranks |= bit(rank);
  }
  for (const TarShards::Shard& shard : layout_.shards().others) {
    const MessageProgress message = endpoint_.view(handle()).progress(kGather, shard.owner);
    if (message.slots > 0 && message.received == 0) ranks |= bit(shard.owner);
  }
  return ranks;
}

void TarCall::complete_output() {
  // In place, the memory that is filled here was lent for the scatter.
  const Status status = call_->report.status;
  const bool ended = has_result(status);
  const bool settles = closed_.has(kScatter) && (near_ == nullptr || near_->has_contributions());
  if (ended && settles && !call_->report.nonfinite) settle();
  if (call_->report.nonfinite) {
    output_.fill_with_nan();
  } else if (coding_) {
    if (ended) output_.decode(*coding_, late_self_);
  } else if (status == Status::partial || status == Status::late_self) {
    output_.fill_missing(late_self_, near_ == nullptr ? nullptr : &near_->sums());
  }
}

/// When only work followed the end of the stages, because the bound had closed them.
std::optional<Time> TarCall::cut_at() const {
  const bool cut = call_->report.stages[kGather].closing == Closing::bound &&
                   whole_since_ != kNever && serves_afterwards();  // else it waits until its limit
  return cut ? std::optional(whole_since_) : std::nullopt;
}

}  // namespace tarpon
