#include "collectives/engine/exact/scheduled_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/rank_list.h"
#include "transport/pair_tag.h"

namespace tarpon {

ScheduledCall::ScheduledCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                             Endpoint& endpoint, Time submitted, Time now)
    : ScheduledCall(setting, call, endpoint, submitted, now, program_of(setting, *call)) {
  open(specify(), signature(), now);
}

ScheduledCall::ScheduledCall(const Setting& setting, std::shared_ptr<PendingCall> call,
                             Endpoint& endpoint, Time submitted, Time now, Program program)
    : RunningCall(setting, std::move(call), endpoint, submitted, now),
      executor_(make_executor(std::move(program))) {
  const CollectiveParts* const parts = call_->arguments.parts.get();
  if (parts != nullptr && parts->by_pair) pair_counts_.emplace(*parts, setting.rank);
  call_->report.algorithm = call_->arguments.algorithm;
  call_->report.bytes_sent = executor_.bytes_sent();
}

ScheduledCall::~ScheduledCall() {
  if (partials_) setting_.partial_buffers->release(std::move(*partials_));
}

ScheduledCall::Program ScheduledCall::program_of(const Setting& setting, const PendingCall& call) {
  const CallArguments& arguments = call.arguments;
  const std::uint32_t turn = setting.mechanisms.rotation ? call.report.operation : 0;
  return {.schedule = arguments.parts
                          ? collective_schedule(*arguments.parts, setting.world, setting.rank,
                                                element_bytes(arguments.type))
                          : schedule_of(arguments, setting.world, setting.rank, turn),
          .input = arguments.bucket_input(setting.rank),
          .contributors = bit(setting.rank),
          .function = arguments.function,
          .others = first_ranks(setting.world) & ranks_of_tag(arguments.tag) & ~bit(setting.rank)};
}

OperationSpec ScheduledCall::specify() {
  OperationSpec spec;
  spec.tag = call_->arguments.tag;
  spec.slot_bytes = setting_.slot_bytes;
  spec.deadline = deadline_;
  spec.began = setting_.began;
  spec.awaits_confirmations = true;
  spec.stages = executor_.stages();
  if (pair_counts_) spec.terms_by_peer = pair_counts_->terms();
  return spec;
}

/// Ends the call if a peer counts the parts between it and this rank differently.
bool ScheduledCall::counts_differ(Time now) {
  if (!pair_counts_) return false;
  const auto difference = pair_counts_->find(endpoint_.view(handle()));
  if (!difference) return false;
  call_->report.blamed = {difference->peer};
  end(Status::mismatch, difference->text, now);
  return true;
}

/// Takes a buffer for partial results if they are not elements.
ScheduleExecutor ScheduledCall::make_executor(Program program) {
  const CallArguments& arguments = call_->arguments;
  ScheduleExecutor::Shape shape;
  shape.confirm_above = kConfirmAbove;
  shape.others = program.others;
  ChunkSums::Shape& chunks = shape.chunks;
  chunks.input = program.input;
  chunks.contributors = program.contributors;
  chunks.provided = program.provided;
  chunks.sums.output =
      program.output != nullptr ? program.output : arguments.bucket_output(setting_.rank);
  chunks.sums.most_bytes = setting_.slot_bytes;
  chunks.sums.type = arguments.type;
  chunks.sums.function = program.function;
  chunks.sums.world = setting_.world;
  chunks.sums.custom = arguments.custom;
  const std::uint64_t places = ChunkSums::partial_results(program.schedule);
  if (needs_partials(arguments.type, program.function) && places > 0) {
    partials_ = setting_.partial_buffers->allocate(places);
    chunks.sums.partials = partials_->get();
  }
  chunks.slot_bytes = setting_.slot_bytes;
  chunks.buffers = setting_.partial_buffers;
  return ScheduleExecutor(std::move(program.schedule), shape);
}

OperationSignature ScheduledCall::signature() const {
  OperationSignature result = common_signature(call_->arguments);
  result.algorithm = call_->arguments.algorithm;
  if (result.algorithm == Algorithm::two_level_tar) {
    const std::uint32_t given = call_->arguments.group_size;
    result.group_size =
        static_cast<std::uint8_t>(given != 0 ? given : default_group_size(setting_.world));
  }
  if (result.algorithm == Algorithm::late_rank) {
    result.late_rank = static_cast<std::uint8_t>(1 + call_->arguments.late_rank);
  }
  if (!call_->arguments.parts) result.shares = call_->arguments.shares.hash();
  result.slot_bytes = static_cast<std::uint16_t>(setting_.slot_bytes);
  return result;
}

bool ScheduledCall::advance(Time now) {
  if (finishing_) {
    if (confirmed()) work_.clear();
    if (work_.idle()) end_whole(now);
    return over();
  }
  if (counts_differ(now)) return true;
  executor_.advance(endpoint_, handle());
  if (!closed_.all() || blame().unheard()) return false;
  if (settle_at_ == kNever) {
    settle_at_ = now;
    if (executor_.confirms_kept()) settle_at_ += std::max(kLeastSettling, (now - submitted_) / 8);
    settle_at_ = std::min(settle_at_, deadline_);
  }
  wake_at_ = now < settle_at_ ? settle_at_ : deadline_;
  if (!may_finish(now)) return false;
  finish(now);
  return over();
}

/// At the root of a broadcast, for example, all work is to send data to other ranks.
bool ScheduledCall::owes() const {
  if (call_->arguments.parts == nullptr) return false;
  const OperationView view = endpoint_.view(handle());
  const std::vector<Rank> lost = ranks_of(lost_receivers_);
  return view.unacknowledged() != 0 ||
         std::any_of(lost.begin(), lost.end(), [&](Rank rank) { return view.takes_no_part(rank); });
}

void ScheduledCall::rank_absent(Rank rank) {
  RunningCall::rank_absent(rank);
  if (!over()) lost_receivers_ |= endpoint_.view(handle()).unacknowledged() & bit(rank);
}

/// Whether all receivers have the kept piece.
bool ScheduledCall::confirmed() const {
  return executor_.confirms_kept() && endpoint_.view(handle()).acknowledged(executor_.kept_stage());
}

/// Whether peers have the data that this rank forwards, or a copy may be kept for them. At the
/// deadline the call ends in any case, because its own result is whole.
bool ScheduledCall::may_finish(Time now) const {
  if (now >= deadline_) return true;
  if (!keeps()) return endpoint_.view(handle()).unacknowledged() == 0;
  if (executor_.kept_slots() == 0 || confirmed()) return true;
  if (executor_.confirms_kept() && now < settle_at_) return false;
  return endpoint_.view(handle()).sent(executor_.kept_stage()) &&
         endpoint_.tags().may_retain(executor_.kept_bytes());
}

void ScheduledCall::finish(Time now) {
  if (finishing_) return;
  finishing_ = true;
  wake_at_ = kNever;
  if (!copy_for_peers([this, now] { copy_kept(now); }, now)) return;
  if (work_.idle()) end_whole(now);
}

/// Copies the kept piece, as work; not a large one if there is no room for it at the deadline.
/// Throws the exceptions of the memory resource, before anything is copied.
void ScheduledCall::copy_kept(Time now) {
  if (!keeps() || executor_.kept_slots() == 0 || confirmed()) return;
  const bool has_room = endpoint_.tags().may_retain(executor_.kept_bytes());
  if (executor_.confirms_kept() && now >= deadline_ && !has_room) return;
  copy_ = std::make_unique<Retained>(setting_.memory);
  copy_->stage = executor_.kept_stage();
  const std::uint64_t receivers = executor_.kept_receivers();
  const bool all = receivers == (first_ranks(setting_.world) & ~bit(setting_.rank));
  copy_->receivers = all ? kAllReceivers : receivers;
  copy_->bytes.reserve(executor_.kept_bytes());
  copy_->contributors.reserve(executor_.kept_slots());
  work_.add(executor_.kept_slots(), setting_.slot_bytes,
            [this](std::uint64_t first, std::uint64_t count) {
              executor_.copy_kept(static_cast<std::uint32_t>(first),
                                  static_cast<std::uint32_t>(count), *copy_);
            });
}

/// Copies what this rank's output has of its own input.
void ScheduledCall::complete_output() {
  const CallArguments& arguments = call_->arguments;
  if (!arguments.parts || call_->report.status != Status::complete) return;
  const std::size_t width = element_bytes(arguments.type);
  const CollectiveParts::OwnCopy own = arguments.parts->own_copy(setting_.rank);
  if (own.count == 0) return;
  const std::byte* const from = arguments.bucket_input(setting_.rank) + own.from * width;
  std::byte* const to = arguments.bucket_output(setting_.rank) + own.to * width;
  if (from == to) return;
  work_.add(own.count * width, 1, [from, to](std::uint64_t first, std::uint64_t count) {
    std::memcpy(to + first, from + first, count);
  });
}

/// Reports `ranks`, which had not confirmed this rank's data by the deadline, as late.
void ScheduledCall::note_lacking(std::uint64_t ranks) {
  Report& report = call_->report;
  report.status = Status::peer_late;
  report.late_ranks = ranks_of(ranks);
  report.detail = fmt::format("no confirmation from {} by the deadline",
                              rendezvous::rank_list(report.late_ranks));
}

void ScheduledCall::end_whole(Time now) {
  if (confirmed()) copy_.reset();
  // Ranks that still lack data could not get it any more, and are told. A rank that is evicted
  // tells the others nothing.
  const bool cut = now >= deadline_ && copy_ == nullptr;
  const std::uint64_t lacking = cut ? endpoint_.view(handle()).unacknowledged() : 0;
  if (lacking != 0 && owes()) note_lacking(lacking);
  report_end(now);
  if (lacking != 0) return abort_operation(AbortReason::late, lacking);
  close(std::move(copy_), 0);
}

}  // namespace tarpon
