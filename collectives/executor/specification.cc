// What an AllReduce asks of the endpoint: its stages, their messages and bounds.
#include <algorithm>

#include "collectives/executor/allreduce_operation.h"

namespace tarpon {

Reducer::Shape AllreduceOperation::reducer_shape(Mode mode) const {
  Reducer::Shape shape;
  shape.own = input_ + schedule_.own.first;
  shape.accumulator = output_ + schedule_.own.first;
  shape.bytes = schedule_.own.count;
  shape.slot_bytes = setting_.slot_bytes;
  shape.type = call_->arguments.type;
  shape.function = call_->arguments.function;
  shape.rank = setting_.rank;
  shape.world = setting_.world;
  if (mode == Mode::bounded) {
    shape.rescale = setting_.mechanisms.rescale;
    if (shape.rescale == Rescale::inverse) shape.weights = setting_.losses->weights();
  }
  return shape;
}

std::uint64_t AllreduceOperation::bucket_bytes() const {
  return call_->arguments.count * element_bytes(call_->arguments.type);
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
  spec.nonfinite = call_->nonfinite;
  spec.fetches_when_late = retains();
  spec.signature = encode(signature());
  const Duration left = std::max(Duration::zero(), spec.deadline - now);
  const StageBounds bounds =
      setting_.bounds->plan(arguments.bound_rule, arguments.bound, bucket_bytes(), left);
  for (std::size_t stage = 0; stage < bounds.bound.size(); ++stage) {
    spec.bounds[stage] = bounds.bound[stage];
    spec.early[stage] = bounds.early[stage];
    if (!spec.bounded) continue;
    call_->report.stages[stage].bound = bounds.bound[stage];
    call_->report.stages[stage].early = bounds.early[stage];
  }
  spec.stage_time = bounds.stage_time;
  spec.stages.resize(2);
  add_scatter(spec);
  add_gather(spec);
  return spec;
}

void AllreduceOperation::add_scatter(OperationSpec& spec) {
  StageSpec& stage = spec.stages[kScatter];
  stage.ordered = !spec.bounded && call_->arguments.order == AdditionOrder::fixed;
  stage.repair = setting_.mechanisms.scatter_repair;
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
  stage.repair = setting_.mechanisms.repair;
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

}  // namespace tarpon
