// What stands in the result where the reduced value could not be had.
#include <algorithm>
#include <cstring>

#include "collectives/executor/allreduce_operation.h"

namespace tarpon {

/// Rows that are not here are zero, and what is here of a block stands for all of it.
void AllreduceOperation::decode_result() {
  const auto lose = [this](std::uint64_t first_byte, std::uint32_t slot) {
    coding_->lose(coding_->row_at(first_byte + slot * slot_stride()));
  };
  if (late_self_) {
    for (std::uint32_t slot = 0; slot < reducer_.slots(); ++slot) lose(schedule_.own.first, slot);
  }
  const std::vector<Schedule::Transfer>& receives = schedule_.stages[kGather].receives;
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const ContributorMasks& contributors = gather_[i].contributors();
    for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
      if (contributors[slot] == 0) lose(receives[i].first_byte, slot);
    }
  }
  for (const Coding::Gap& gap : coding_->decode(reinterpret_cast<float*>(output_))) {
    fill(gap.first * sizeof(float), gap.count * sizeof(float));
  }
}

void AllreduceOperation::fill_missing() {
  if (late_self_) void_own_shard();
  const std::vector<Schedule::Transfer>& receives = schedule_.stages[kGather].receives;
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const ContributorMasks& contributors = gather_[i].contributors();
    for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
      if (contributors[slot] != 0) continue;
      const std::uint64_t offset = receives[i].first_byte + std::uint64_t{slot} * slot_bytes();
      fill(offset, slot_length(receives[i].bytes, slot_bytes(), slot));
    }
  }
}

void AllreduceOperation::void_own_shard() {
  const Range own = schedule_.own;
  const AllreduceArguments& arguments = call_->arguments;
  if (output_ != input_ || arguments.missing == MissingFill::zero) {
    return fill(own.first, own.count);
  }
  const ContributorMasks& contributors = reducer_.contributors();
  const bool mixed = std::any_of(contributors.begin(), contributors.end(),
                                 [&](std::uint64_t here) { return here != bit(setting_.rank); });
  if (mixed) {
    std::memset(output_ + own.first, 0, own.count);  // our contribution is not to be had any more
  } else if (setting_.mechanisms.rescale != Rescale::count) {
    // In place the reducer has settled the shard already: by Rescale::count it speaks for all ranks
    // by now; by the other rules a sum is as it was, and an average is divided by their number.
    scale(own.first, own.count, std::uint32_t{setting_.world});
  }
}

void AllreduceOperation::fill(std::uint64_t offset, std::uint64_t length) {
  const AllreduceArguments& arguments = call_->arguments;
  if (arguments.missing == MissingFill::zero) {
    std::memset(output_ + offset, 0, length);
    return;
  }
  if (output_ != input_) std::memcpy(output_ + offset, input_ + offset, length);
  scale(offset, length, arguments.function == ReduceOp::avg ? 1 : std::uint32_t{setting_.world});
}

void AllreduceOperation::scale(std::uint64_t offset, std::uint64_t length, std::uint32_t factor) {
  const AllreduceArguments& arguments = call_->arguments;
  reduce_kernels(arguments.type, arguments.function)
      .scale(output_ + offset, length / element_bytes(arguments.type), factor, 1);
}

}  // namespace tarpon
