// Which calls may run bounded, and the names of what reports say.
#include "collectives/allreduce.h"

#include "transport/rank_mask.h"

namespace tarpon {

bool can_be_bounded(DataType type, ReduceOp function) {
  return (function == ReduceOp::sum || function == ReduceOp::avg) && !is_integer(type);
}

bool may_run_bounded(const AllreduceArguments& arguments) {
  return arguments.mode == Mode::bounded && can_be_bounded(arguments.type, arguments.function);
}

std::uint64_t Report::mask(const std::vector<Rank>& ranks) const {
  if (host_of == nullptr) return mask_of(ranks);
  std::uint64_t mask = 0;
  for (const Rank rank : ranks) {
    if (rank < host_of->size()) mask |= bit((*host_of)[rank]);
  }
  return mask;
}

std::uint64_t bucket_bytes(const AllreduceArguments& arguments) {
  return arguments.count * element_bytes(arguments.type);
}

std::string_view name(Status status) {
  switch (status) {
    case Status::complete:
      return "complete";
    case Status::partial:
      return "partial";
    case Status::late_self:
      return "late_self";
    case Status::peer_late:
      return "peer_late";
    case Status::mismatch:
      return "mismatch";
    case Status::aborted:
      return "aborted";
    case Status::failed:
      return "failed";
    case Status::peer_dead:
      return "peer_dead";
    case Status::evicted:
      return "evicted";
    case Status::peer_left:
      return "peer_left";
  }
  return "?";
}

std::string_view name(AbortReason reason) {
  switch (reason) {
    case AbortReason::given_up:
      return "given_up";
    case AbortReason::mismatch:
      return "mismatch";
    case AbortReason::expired:
      return "expired";
    case AbortReason::late:
      return "late";
    case AbortReason::argument:
      return "argument";
    case AbortReason::deadline:
      return "deadline";
    case AbortReason::memory:
      return "memory";
    case AbortReason::exception:
      return "exception";
    case AbortReason::tag_forgotten:
      return "tag_forgotten";
  }
  return "?";
}

std::string_view name(CallStage stage) {
  switch (stage) {
    case CallStage::queued:
      return "queued";
    case CallStage::scatter:
      return "scatter";
    case CallStage::gather:
      return "gather";
    case CallStage::result:
      return "result";
  }
  return "?";
}

}  // namespace tarpon
