// Fills the result where the reduced value is missing.
#include <algorithm>
#include <cstring>

#include "collectives/engine/tar_call.h"

namespace tarpon {

/// Lists the slots of other owners that did not arrive.
void TarCall::find_missing() {
  const std::vector<TarShards::Shard>& others = shards_.others;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const ContributorMasks& contributors = gather_[i].contributors();
    for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
      if (contributors[slot] != 0) continue;
      missing_.push_back({others[i].range.first + slot * slot_stride(),
                          slot_length(others[i].range.count, slot_bytes(), slot)});
    }
  }
}

/// Decodes the result. Missing rows count as zero. The rows of a block that arrived are scaled up
/// to the whole block.
void TarCall::decode_result() {
  for (std::uint32_t slot = 0; late_self_ && slot < reducer_.slots(); ++slot) {
    missing_.push_back({shards_.own.first + slot * slot_stride(), slot_bytes()});
  }
  find_missing();
  for (const Range& row : missing_) coding_->lose(coding_->row_at(row.first));
  gaps_ = coding_->start_decoding();
  work_.add(missing_.size(), slot_bytes(), [this](std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      coding_->clear(coding_->row_at(missing_[i].first), 1);
    }
  });
  const std::uint64_t block = coding_->block_bytes();
  work_.add(coding_->layout().all_members(), block,
            [this](std::uint64_t first, std::uint64_t count) {
              coding_->decode(reinterpret_cast<float*>(output_), {first, count});
            });
  work_.add(gaps_.size(), block, [this](std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      fill(gaps_[i].first * sizeof(float), gaps_[i].count * sizeof(float));
    }
  });
}

void TarCall::fill_missing() {
  if (late_self_) void_own_shard();
  find_missing();
  work_.add(missing_.size(), slot_bytes(), [this](std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i)
      fill(missing_[i].first, missing_[i].count);
  });
}

/// Calls `change(offset, length)`, part by part.
template <typename Change>
void TarCall::change_own_shard(Change change) {
  const Range own = shards_.own;
  work_.add(slots(own.count, slot_bytes()), slot_bytes(),
            [=, this](std::uint64_t first, std::uint64_t count) {
              const std::uint64_t begin = first * slot_bytes();
              change(own.first + begin, std::min(count * slot_bytes(), own.count - begin));
            });
}

void TarCall::void_own_shard() {
  const AllreduceArguments& arguments = call_->arguments;
  if (output_ != input_ || arguments.missing == MissingFill::zero) {
    return change_own_shard(
        [this](std::uint64_t offset, std::uint64_t length) { fill(offset, length); });
  }
  const ContributorMasks& contributors = reducer_.contributors();
  const bool mixed = std::any_of(contributors.begin(), contributors.end(),
                                 [&](std::uint64_t here) { return here != bit(setting_.rank); });
  if (mixed) {
    // Our contribution is no longer available.
    change_own_shard([this](std::uint64_t offset, std::uint64_t length) {
      std::memset(output_ + offset, 0, length);
    });
    return;
  }
  // In place the reducer has settled the shard already. Some rules have scaled it up to all ranks.
  const Ratio settled = setting_.rescaling->factor(arguments.function, setting_.world, 1);
  const std::uint32_t factor = local_factor() * settled.down / settled.up;
  if (factor == 1) return;
  change_own_shard([this, factor](std::uint64_t offset, std::uint64_t length) {
    scale(offset, length, factor);
  });
}

/// The factor on this rank's contribution where it stands for those of all ranks.
std::uint32_t TarCall::local_factor() const {
  return call_->arguments.function == ReduceOp::avg ? 1 : setting_.world;
}

void TarCall::fill(std::uint64_t offset, std::uint64_t length) {
  const AllreduceArguments& arguments = call_->arguments;
  if (arguments.missing == MissingFill::zero) {
    std::memset(output_ + offset, 0, length);
    return;
  }
  if (output_ != input_) std::memcpy(output_ + offset, input_ + offset, length);
  scale(offset, length, local_factor());
}

void TarCall::scale(std::uint64_t offset, std::uint64_t length, std::uint32_t factor) {
  const AllreduceArguments& arguments = call_->arguments;
  std::byte* const at = output_ + offset;
  reduce_kernels(arguments.type, arguments.function)
      .scale(at, at, length / element_bytes(arguments.type), factor, 1);
}

}  // namespace tarpon
