#include "collectives/executor/allreduce_operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace tarpon {
namespace {

// Below this a shard is copied for late peers rather than confirmed by them: a copy of 64 KiB costs
// less than the packets.
constexpr std::uint64_t kConfirmAbove = 64 << 10;

// After the first mismatch others may still come in: their ranks belong into the report.
constexpr Duration kMismatchGrace = 50ms;

// Sending the last packets takes a moment even when the result was complete at once.
constexpr Duration kLeastSettling = 1ms;

std::uint64_t bit(Rank rank) {
  return 1ull << rank;
}

Mode effective_mode(const AllreduceArguments& arguments) {
  const bool additive = arguments.function == ReduceOp::sum || arguments.function == ReduceOp::avg;
  return additive && !is_integer(arguments.type) ? arguments.mode : Mode::exact;
}

}  // namespace

AllreduceOperation::AllreduceOperation(const Setting& setting, std::shared_ptr<PendingCall> call,
                                       Endpoint& endpoint, Time submitted, Time now)
    : setting_(setting),
      call_(std::move(call)),
      endpoint_(endpoint),
      schedule_(tar_schedule(setting.world, setting.rank,
                             endpoint.next_number(call_->arguments.tag), call_->arguments.count,
                             element_bytes(call_->arguments.type))),
      input_(static_cast<const std::byte*>(call_->arguments.input)),
      output_(static_cast<std::byte*>(call_->arguments.output)),
      reducer_({.own = input_ + schedule_.own.first,
                .accumulator = output_ + schedule_.own.first,
                .bytes = schedule_.own.count,
                .slot_bytes = setting.slot_bytes,
                .type = call_->arguments.type,
                .function = call_->arguments.function,
                .rank = setting.rank,
                .world = setting.world}),
      submitted_(submitted),
      deadline_(after(submitted, call_->arguments.deadline)) {
  Report& report = call_->report;
  report.tag = call_->arguments.tag;
  report.operation = endpoint.next_number(report.tag);
  report.mode = effective_mode(call_->arguments);
  handle_ = endpoint_.submit(specify(now), now);
}

OperationSignature AllreduceOperation::signature() const {
  const AllreduceArguments& arguments = call_->arguments;
  OperationSignature result;
  result.type = arguments.type;
  result.function = arguments.function;
  result.mode = call_->report.mode;
  result.slot_bytes = setting_.slot_bytes;
  result.count = arguments.count;
  result.order = result.mode == Mode::bounded ? AdditionOrder::any : arguments.order;
  return result;
}

OperationSpec AllreduceOperation::specify(Time now) {
  const AllreduceArguments& arguments = call_->arguments;
  OperationSpec spec;
  spec.tag = arguments.tag;
  spec.slot_bytes = setting_.slot_bytes;
  spec.deadline = deadline_;
  spec.bounded = call_->report.mode == Mode::bounded;
  spec.signature = encode(signature());
  const Duration left = std::max(Duration::zero(), spec.deadline - now);
  spec.bounds.fill(std::min(arguments.bound.value_or(left / 2), left / 2));
  spec.stages.resize(2);
  add_scatter(spec);
  add_gather(spec);
  return spec;
}

void AllreduceOperation::add_scatter(OperationSpec& spec) {
  StageSpec& stage = spec.stages[kScatter];
  stage.ordered = !spec.bounded && call_->arguments.order == AdditionOrder::fixed;
  stage.repair = false;
  const Schedule::Stage& from = schedule_.stages[kScatter];
  scatter_.reserve(from.sends.size());
  for (const Schedule::Transfer& transfer : from.sends) {
    scatter_.emplace_back(input_ + transfer.first_byte, setting_.slot_bytes, bit(setting_.rank));
    stage.sends.push_back({transfer.peer, &scatter_.back(), transfer.bytes});
    call_->report.bytes_sent += transfer.bytes;
  }
  for (const Schedule::Transfer& transfer : from.receives) {
    stage.receives.push_back({transfer.peer, &reducer_, transfer.bytes});
  }
}

void AllreduceOperation::add_gather(OperationSpec& spec) {
  StageSpec& stage = spec.stages[kGather];
  stage.ready = 0;
  const Schedule::Stage& from = schedule_.stages[kGather];
  // Both ends of a message see the same size, so they agree on whether it is confirmed.
  std::uint64_t longest = schedule_.own.count;
  for (const Schedule::Transfer& transfer : from.receives) {
    longest = std::max(longest, transfer.bytes);
  }
  stage.acknowledge = longest > kConfirmAbove;
  for (const Schedule::Transfer& transfer : from.sends) {
    stage.sends.push_back({transfer.peer, &reducer_, transfer.bytes});
    call_->report.bytes_sent += transfer.bytes;
  }
  gather_.reserve(from.receives.size());
  for (const Schedule::Transfer& transfer : from.receives) {
    gather_.emplace_back(output_ + transfer.first_byte, slots(transfer.bytes, setting_.slot_bytes),
                         setting_.slot_bytes);
    stage.receives.push_back({transfer.peer, &gather_.back(), transfer.bytes});
  }
}

void AllreduceOperation::on_event(const Event& event, Time now) {
  switch (event.kind) {
    case Event::Kind::stage_closed:
      if (event.stage == kScatter) {
        scatter_closed_ = true;
        if (!event.complete) reducer_.settle();
      } else {
        gather_closed_ = true;
        gather_complete_ = event.complete;
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
  if (scatter_closed_ && gather_closed_) return;  // our result needs nobody any more
  if (event.reason == TARPON_ABORT_MISMATCH) {
    // Whoever differs will say so itself, unless it has gone.
    if (fail_at_ != kNever) return;
    fail_at_ = now + kMismatchGrace;
    call_->report.detail =
        fmt::format("rank {} met another operation under this number", event.peer);
    return;
  }
  call_->report.blamed.push_back(event.peer);
  end(Status::aborted, fmt::format("rank {} gave the operation up", event.peer), now);
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

void AllreduceOperation::end_at_deadline(Time now) {
  call_->report.late_ranks = absent_ranks();
  const double seconds = std::chrono::duration<double>(call_->arguments.deadline).count();
  end(Status::peer_late,
      fmt::format("no complete answer from rank {} within the deadline of {} s",
                  fmt::join(call_->report.late_ranks, ", "), seconds),
      now);
}

bool AllreduceOperation::step(Time now) {
  if (over_) return true;
  if (now >= fail_at_) {
    end(Status::mismatch, "", now);
    return true;
  }
  if (fail_at_ != kNever) return false;
  endpoint_.advance(handle_, kGather, reducer_.ready());
  if (!scatter_closed_ || !gather_closed_) return false;
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
  // What is waited for beyond settle_at_ comes by packets.
  if (now >= settle_at_) wake_at_ = deadline_;
  if (unheard()) return false;
  if (schedule_.own.count == 0 || confirmed()) return true;
  const Time patience = call_->report.mode == Mode::bounded ? settle_at_ : deadline_;
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
  return std::min(fail_at_, wake_at_);
}

std::unique_ptr<Retained> AllreduceOperation::retain() const {
  if (schedule_.own.count == 0 || confirmed()) return nullptr;
  auto retained = std::make_unique<Retained>();
  retained->stage = kGather;
  const std::byte* shard = output_ + schedule_.own.first;
  retained->bytes.assign(shard, shard + schedule_.own.count);
  retained->contributors = reducer_.contributors();
  return retained;
}

void AllreduceOperation::finish(Time now) {
  auto retained = retain();
  if (call_->report.mode == Mode::bounded) report_loss();
  for (std::size_t stage = 0; stage < schedule_.stages.size(); ++stage) {
    for (const Schedule::Transfer& transfer : schedule_.stages[stage].receives) {
      const MessageProgress message =
          endpoint_.progress(handle_, static_cast<std::uint8_t>(stage), transfer.peer);
      call_->report.bytes_received +=
          std::min(transfer.bytes, std::uint64_t{message.received} * setting_.slot_bytes);
    }
  }
  call_->report.elapsed = now - submitted_;
  endpoint_.close(handle_, std::move(retained));
  over_ = true;
}

Time AllreduceOperation::release_by() const {
  // What a complete call still has to send others wait for; to the rest somebody was late already.
  return call_->report.status == Status::complete ? deadline_ : Time::min();
}

void AllreduceOperation::release() {
  // In place, what is filled here was lent for the scatter.
  if (call_->report.status == Status::partial) fill_missing();
  call_->done = true;
}

void AllreduceOperation::fill_missing() {
  const AllreduceArguments& arguments = call_->arguments;
  const ReduceKernels& kernels = reduce_kernels(arguments.type, arguments.function);
  const std::vector<Schedule::Transfer>& receives = schedule_.stages[kGather].receives;
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const std::vector<std::uint64_t>& contributors = gather_[i].contributors();
    for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
      if (contributors[slot] != 0) continue;
      const std::uint64_t offset =
          receives[i].first_byte + std::uint64_t{slot} * setting_.slot_bytes;
      const std::size_t length = slot_length(receives[i].bytes, setting_.slot_bytes, slot);
      if (arguments.missing == MissingFill::zero) {
        std::memset(output_ + offset, 0, length);
        continue;
      }
      if (output_ != input_) std::memcpy(output_ + offset, input_ + offset, length);
      const std::uint32_t numerator =
          arguments.function == ReduceOp::avg ? 1 : std::uint32_t{setting_.world};
      kernels.scale(output_ + offset, length / element_bytes(arguments.type), numerator, 1);
    }
  }
}

void AllreduceOperation::add_runs(std::uint64_t first_byte, std::uint64_t bytes,
                                  const std::vector<std::uint64_t>& contributors) {
  const std::uint64_t width = element_bytes(call_->arguments.type);
  std::vector<ContributorRun>& runs = call_->report.runs;
  for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
    const std::uint64_t first = (first_byte + std::uint64_t{slot} * setting_.slot_bytes) / width;
    const std::uint64_t count = slot_length(bytes, setting_.slot_bytes, slot) / width;
    if (!runs.empty() && runs.back().contributors == contributors[slot] &&
        runs.back().first + runs.back().count == first) {
      runs.back().count += count;
    } else {
      runs.push_back({first, count, contributors[slot]});
    }
  }
}

/// Whether nothing that `rank` should have sent here has come: a result whose owner is lost lacks
/// the contributions of ranks that were in time.
bool AllreduceOperation::silent(Rank rank) const {
  if (rank == setting_.rank) return false;
  const MessageProgress scatter = endpoint_.progress(handle_, kScatter, rank);
  const MessageProgress gather = endpoint_.progress(handle_, kGather, rank);
  if (scatter.slots + gather.slots == 0) return !scatter.heard;
  return scatter.received + gather.received == 0;
}

void AllreduceOperation::report_loss() {
  Report& report = call_->report;
  add_runs(schedule_.own.first, schedule_.own.count, reducer_.contributors());
  const std::vector<Schedule::Transfer>& receives = schedule_.stages[kGather].receives;
  for (std::size_t i = 0; i < receives.size(); ++i) {
    add_runs(receives[i].first_byte, receives[i].bytes, gather_[i].contributors());
  }
  std::sort(report.runs.begin(), report.runs.end(),
            [](const ContributorRun& a, const ContributorRun& b) { return a.first < b.first; });

  report.missing.assign(setting_.world, 0);
  std::uint64_t stage1 = 0;
  std::uint64_t stage2 = 0;
  for (const ContributorRun& run : report.runs) {
    for (Rank rank = 0; rank < setting_.world; ++rank) {
      if ((run.contributors & bit(rank)) != 0) continue;
      report.missing[rank] += run.count;
      (run.contributors == 0 ? stage2 : stage1) += run.count;
    }
  }
  if (stage1 + stage2 == 0) {
    report.missing.clear();
    report.runs.clear();
    return;
  }
  const double whole =
      static_cast<double>(call_->arguments.count) * static_cast<double>(setting_.world);
  report.lost_stage1 = static_cast<double>(stage1) / whole;
  report.lost_stage2 = static_cast<double>(stage2) / whole;
  report.lost_fraction = static_cast<double>(stage1 + stage2) / whole;
  for (Rank rank = 0; rank < setting_.world; ++rank) {
    if (report.missing[rank] == call_->arguments.count && silent(rank)) {
      report.late_ranks.push_back(rank);
    }
  }
  report.status = Status::partial;
  report.detail = fmt::format(
      "{:.4f} % of the contributions are missing ({:.4f} % in stage 1, "
      "{:.4f} % in stage 2)",
      report.lost_fraction * 100, report.lost_stage1 * 100, report.lost_stage2 * 100);
}

void AllreduceOperation::end(Status status, std::string detail, Time now) {
  if (over_) return;
  Report& report = call_->report;
  report.status = status;
  if (!detail.empty()) report.detail = std::move(detail);
  report.elapsed = now - submitted_;
  if (status == Status::mismatch) {
    endpoint_.abort(handle_, TARPON_ABORT_MISMATCH);  // ranks that have not begun learn it too
  } else {
    endpoint_.close(handle_, nullptr);
  }
  over_ = true;
}

void AllreduceOperation::give_up(Time now) {
  if (over_) return;
  Report& report = call_->report;
  report.status = Status::aborted;
  report.blamed = {setting_.rank};
  report.detail = "given up by this rank";
  report.elapsed = now - submitted_;
  endpoint_.abort(handle_, TARPON_ABORT_GIVEN_UP);
  over_ = true;
}

}  // namespace tarpon
