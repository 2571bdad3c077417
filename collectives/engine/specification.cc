// Specifies an AllReduce for the endpoint: its stages, their messages and bounds.
#include <algorithm>

#include "collectives/engine/tar_call.h"
#include "collectives/step_verdict.h"

namespace tarpon {
namespace {

constexpr Duration kLeastGrace = 1ms;  // the last slots of a late rank may need a repair

}  // namespace

TarShards TarCall::make_shards() const {
  const AllreduceArguments& arguments = call_->arguments;
  const std::uint32_t turn =
      setting_.mechanisms.rotation ? endpoint_.next_number(arguments.tag) : 0;
  if (coding_) {
    return striped_shards(setting_.world, setting_.rank, turn, coding_->layout().rows(),
                          coding_->row_bytes(), coding_->row_pitch_bytes());
  }
  const std::size_t width = element_bytes(arguments.type);
  TarShards shards =
      tar_shards(setting_.world, setting_.rank, turn, arguments.count, width, arguments.shares);
  shards.own = shards.own.times(width);
  for (TarShards::Shard& shard : shards.others) shard.range = shard.range.times(width);
  return shards;
}

std::uint64_t TarCall::slot_stride() const {
  return coding_ ? std::uint64_t{setting_.world} * coding_->row_pitch_bytes() : slot_bytes();
}

/// The slots of the result, or of the coded bucket.
SlotArray<std::byte> TarCall::slots_at(std::uint64_t first_byte) const {
  return {(coding_ ? coding_->data() : output_) + first_byte, slot_stride()};
}

/// Takes a buffer for partial results if the reducer needs one.
Reducer::Shape TarCall::reducer_shape(Mode mode) {
  Reducer::Shape shape;
  shape.accumulator = slots_at(shards_.own.first);
  shape.own = {coding_ ? shape.accumulator.data : input_ + shards_.own.first, slot_stride()};
  shape.bytes = shards_.own.count;
  shape.slot_bytes = slot_bytes();
  shape.type = call_->arguments.type;
  shape.function = call_->arguments.function;
  shape.rank = setting_.rank;
  shape.world = setting_.world;
  shape.memory = setting_.memory;
  if (mode == Mode::bounded) {
    shape.rescaling = *setting_.rescaling;
    shape.weights = setting_.rescaling->weights(*setting_.losses);
  }
  if (Reducer::uses_partials(shape.type, shape.function, shape.world, !shape.weights.empty())) {
    partials_ = setting_.partial_buffers->allocate(shape.bytes / element_bytes(shape.type));
    shape.partials = partials_->get();
  }
  return shape;
}

OperationSignature TarCall::signature() const {
  OperationSignature result = common_signature();
  result.mode = call_->report.mode;
  result.slot_bytes = static_cast<std::uint16_t>(slot_bytes());
  result.epoch = call_->report.epoch;
  if (!coding_) result.shares = call_->arguments.shares.hash();
  result.codec = coding_ ? Codec::hadamard : Codec::none;
  return result;
}

OperationSpec TarCall::specify(Time now) {
  const AllreduceArguments& arguments = call_->arguments;
  OperationSpec spec;
  spec.tag = arguments.tag;
  spec.slot_bytes = slot_bytes();
  spec.epoch.number = call_->report.epoch;
  if (coding_) {
    spec.epoch.form = static_cast<std::uint8_t>(Codec::hadamard);
    spec.epoch.form_details = static_cast<std::uint16_t>(coding_->layout().stride);
  }
  spec.deadline = deadline_;
  spec.bounded = call_->report.mode == Mode::bounded;
  spec.marked = call_->nonfinite;
  spec.asks_if_late = retains();
  spec.signature = encode(signature());
  spec.began = setting_.began;
  if (spec.bounded) plan_bound(spec, now);
  spec.stages.resize(2);
  add_scatter(spec);
  add_gather(spec);
  return spec;
}

CallKind TarCall::kind() const {
  return {bucket_bytes(), coding_ != nullptr, setting_.open};
}

BoundedCall TarCall::bounded_call() const {
  const AllreduceArguments& arguments = call_->arguments;
  // Decoding takes about as long as encoding took.
  const Duration coding = coding_ ? 2 * (began_ - setting_.began) : Duration::zero();
  return {arguments.bound_rule, arguments.bound, kind(), coding};
}

void TarCall::plan_bound(OperationSpec& spec, Time now) {
  const Duration left = std::max(Duration::zero(), deadline_ - now);
  const BoundPlan plan = setting_.bounds->plan(bounded_call(), left);
  terms_ = plan.terms;
  spec.bound = plan.terms.whole;
  spec.terms = encode(plan.terms);
  spec.tells_terms = plan.tells;
  spec.stage_time = plan.stage_time;
  for (std::size_t stage = 0; stage < plan.early.size(); ++stage) {
    spec.early[stage] = plan.early[stage];
    call_->report.stages[stage].early = plan.early[stage];
  }
}

/// Starts the clock at `at`, when half of the ranks had begun. What this rank and its peers expect
/// decides when the stages end.
void TarCall::start_clock(Time at, Time now) {
  std::uint64_t live = ~endpoint_.silent();
  for (Rank peer = 0; peer < setting_.world; ++peer) {
    if (peer == setting_.rank) continue;
    if (endpoint_.takes_no_part(handle(), peer)) live &= ~bit(peer);
    hear_terms(peer);
  }
  const Duration left = std::max(Duration::zero(), deadline_ - at);
  const CallBound bound = setting_.bounds->agree(bounded_call(), terms_, live, left);
  clock_ = at;
  end_ = after(at, bound.whole);
  StageEnds ends;
  ends.at[kScatter] = end_ - bound.gather;
  ends.at[kGather] = gather_due_ = end_;
  ends.hold = hold_policy(bound);
  waits_for_live_ = ends.hold.above < 1;
  // A rank that begins after the scatter adds nothing, and the scatter may wait for it until then.
  // A rank that has not sent its shard asks when half of the gather is left.
  ends.lateness = {.late_after = waits_for_live_ ? ends.hold.until[kScatter] : ends.at[kScatter],
                   .notice = bound.gather / 2,
                   .grace = bound.grace};
  call_->report.bound = bound.whole;
  call_->report.clock_start = at - submitted_;
  call_->report.stages[kScatter].bound = bound.whole - bound.gather;
  call_->report.stages[kGather].bound = ends.at[kGather] - at;
  endpoint_.set_ends(handle(), ends, now);
  work_at_ = now;
  limit_changed(now);
}

/// A bound that the caller gave is kept, alone or beside a learnt one. A learnt one ends no call of
/// which a training step could not use the result. Each stage may lack half of what a step may
/// lack. A call without repair does not wait, since a lost slot never comes. A rank that does not
/// watch for silent ranks does not wait either, since only the deadline would end that wait. The
/// scatter's limit leaves the time of the gather before the deadline. Both limits leave the time of
/// the work on the buffers, as if none of it were done yet.
HoldPolicy TarCall::hold_policy(const CallBound& bound) const {
  const AllreduceArguments& arguments = call_->arguments;
  const bool repaired = setting_.mechanisms.repair && setting_.mechanisms.scatter_repair;
  if (!Bounds::waits_for_data(arguments.bound_rule) || arguments.bound || !repaired ||
      !endpoint_.detects_silence()) {
    return {};
  }
  // A target that has grown changes no budget of steps.
  const double target = std::min(setting_.mechanisms.loss_target, setting_.bounds->loss_target());
  HoldPolicy hold{.above = LossBudget::usual(target).skip_above / 2,
                  .grace = std::max(kLeastGrace, bound.whole / 4)};
  hold.until[kGather] = deadline_ - std::min(work_left(copies()), bound.whole / 2);
  hold.until[kScatter] = hold.until[kGather] - bound.gather;
  return hold;
}

/// A stage has waited for data: the call ends later by as much.
void TarCall::extend(Duration by, Time now) {
  end_ = after(end_, by);
  gather_due_ = after(gather_due_, by);
  call_->report.held += by;
  work_at_ = now;
  limit_changed(now);
}

/// Time for the work on the buffers if both stages closed now: settling, copying our shard if
/// `with_copy`, decoding, and filling the slots that are missing. Zero for small buckets.
Duration TarCall::work_left(bool with_copy) const {
  if (bucket_bytes() <= setting_.piece_bytes) return Duration::zero();
  std::uint64_t bytes = with_copy ? shards_.own.count : 0;
  bytes += std::uint64_t{reducer_.slots() - reducer_.ready()} * slot_bytes();
  for (const TarShards::Shard& shard : shards_.others) {
    const MessageProgress message = endpoint_.progress(handle(), kGather, shard.owner);
    bytes += std::uint64_t{message.slots - message.received} * slot_bytes();
  }
  if (coding_) bytes += coding_->layout().all_members() * coding_->block_bytes();
  return setting_.work_rate->of(bytes);
}

/// Closes both stages when the work that is left needs all of the time until the end of the call.
/// The work shrinks while slots arrive, so the time to close is computed again when it has come.
void TarCall::close_for_work(Time now) {
  if (late_self_ || closed(kGather)) work_at_ = kNever;
  if (now >= work_at_) {
    // Work that takes more than three quarters of the call ends after the bound, whatever is cut.
    work_at_ = end_ - std::min(work_left(copies()), 3 * (end_ - clock_) / 4);
    if (now >= work_at_) {
      for (const std::size_t stage : {kScatter, kGather}) endpoint_.end_stage(handle(), stage, now);
      gather_due_ = now;
      work_at_ = kNever;
    }
  }
  wake_at_ = work_at_;
}

void TarCall::hear_terms(Rank peer) {
  const std::optional<CallTerms> terms = endpoint_.terms(handle(), peer);
  if (!terms || *terms == CallTerms{} || (terms_heard_ & bit(peer)) != 0) return;
  terms_heard_ |= bit(peer);
  setting_.bounds->heard(peer, kind(), decode(*terms));
}

void TarCall::add_scatter(OperationSpec& spec) {
  StageSpec& stage = spec.stages[kScatter];
  stage.repair = setting_.mechanisms.scatter_repair;
  scatter_.reserve(shards_.others.size());
  for (auto to = shards_.others.rbegin(); to != shards_.others.rend(); ++to) {
    const std::byte* const first = (coding_ ? coding_->data() : input_) + to->range.first;
    scatter_.emplace_back(SlotArray<const std::byte>{first, slot_stride()}, bit(setting_.rank));
    stage.sends.push_back({to->owner, &scatter_.back(), to->range.count});
    call_->report.bytes_sent += to->range.count;
  }
  for (const TarShards::Shard& from : shards_.others) {
    stage.receives.push_back({from.owner, &reducer_, shards_.own.count});
  }
}

void TarCall::add_gather(OperationSpec& spec) {
  StageSpec& stage = spec.stages[kGather];
  stage.ready = 0;
  stage.alike = true;
  stage.repair = setting_.mechanisms.repair;
  // Both ends of a message see the same size, so they agree on whether it is confirmed.
  std::uint64_t longest = shards_.own.count;
  for (const TarShards::Shard& from : shards_.others) {
    longest = std::max(longest, from.range.count);
  }
  stage.acknowledge = longest > kConfirmAbove;
  for (auto to = shards_.others.rbegin(); to != shards_.others.rend(); ++to) {
    stage.sends.push_back({to->owner, &reducer_, shards_.own.count});
    call_->report.bytes_sent += shards_.own.count;
  }
  gather_.reserve(shards_.others.size());
  for (const TarShards::Shard& from : shards_.others) {
    gather_.emplace_back(slots_at(from.range.first), slots(from.range.count, slot_bytes()),
                         setting_.memory);
    stage.receives.push_back({from.owner, &gather_.back(), from.range.count});
  }
}

}  // namespace tarpon
