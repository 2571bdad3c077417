// What stands in the result where the reduced value could not be had.
#include <algorithm>
#include <cstring>

#include "collectives/executor/allreduce_operation.h"

namespace tarpon {

void AllreduceOperation::fill_missing() {
  if (late_self_) void_own_shard();
  const std::vector<Schedule::Transfer>& receives = schedule_.stages[kGather].receives;
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const std::vector<std::uint64_t>& contributors = gather_[i].contributors();
    for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
      if (contributors[slot] != 0) continue;
      const std::uint64_t offset =
          receives[i].first_byte + std::uint64_t{slot} * setting_.slot_bytes;
      fill(offset, slot_length(receives[i].bytes, setting_.slot_bytes, slot));
    }
  }
}

void AllreduceOperation::void_own_shard() {
  const Range own = schedule_.own;
  const std::vector<std::uint64_t>& contributors = reducer_.contributors();
  const bool mixed = std::any_of(contributors.begin(), contributors.end(),
                                 [&](std::uint64_t here) { return here != bit(setting_.rank); });
  if (mixed && output_ == input_) {
    std::memset(output_ + own.first, 0, own.count);  // our contribution is not to be had any more
  } else {
    fill(own.first, own.count);
  }
}

void AllreduceOperation::fill(std::uint64_t offset, std::uint64_t length) {
  const AllreduceArguments& arguments = call_->arguments;
  if (arguments.missing == MissingFill::zero) {
    std::memset(output_ + offset, 0, length);
    return;
  }
  if (output_ != input_) std::memcpy(output_ + offset, input_ + offset, length);
  const std::uint32_t numerator =
      arguments.function == ReduceOp::avg ? 1 : std::uint32_t{setting_.world};
  reduce_kernels(arguments.type, arguments.function)
      .scale(output_ + offset, length / element_bytes(arguments.type), numerator, 1);
}

}  // namespace tarpon
