#include "collectives/engine/bounded/output_completion.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "collectives/engine/call/rescaling.h"
#include "collectives/engine/kernels/reduce.h"
#include "transport/rank_mask.h"

namespace tarpon {

OutputCompletion::OutputCompletion(const Call& call)
    : call_(call),
      input_(call.arguments.bucket_input(call.rank)),
      output_(call.arguments.bucket_output(call.rank)) {}

/// Lists the slots of other owners that did not arrive.
void OutputCompletion::find_missing(const HostSums* sums) {
  const std::vector<TarShards::Shard>& others = call_.layout.shards().others;
  for (std::size_t i = 0; i < call_.gather.size(); ++i) {
    const ContributorMasks& contributors = call_.gather[i].contributors();
    for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
      if (contributors[slot] != 0) continue;
      const Range bytes{others[i].range.first + slot * call_.layout.slot_stride(),
                        call_.layout.length_of(others[i].range.count, slot)};
      const bool own_slice = sums != nullptr && call_.layout.is_partner(others[i].owner);
      const std::uint32_t step = own_slice ? slot / sums->step_slots : 0;
      if (own_slice && step < sums->contributors.size()) {
        const auto ranks = static_cast<std::uint32_t>(std::popcount(sums->contributors[step]));
        summed_.push_back({bytes, ranks});
      } else {
        missing_.push_back(bytes);
      }
    }
  }
}

/// Decodes the result. Missing rows count as zero. The rows of a block that arrived are scaled up
/// to the whole block.
void OutputCompletion::decode(Coding& coding, bool late_self) {
  for (std::uint32_t slot = 0; late_self && slot < call_.reducer.slots(); ++slot) {
    missing_.push_back({call_.layout.shards().own.first + slot * call_.layout.slot_stride(),
                        call_.layout.slot_bytes()});
  }
  find_missing(nullptr);
  for (const Range& row : missing_) coding.lose(coding.row_at(row.first));
  gaps_ = coding.start_decoding();
  call_.work.add(missing_.size(), call_.layout.slot_bytes(),
                 [this, &coding](std::uint64_t first, std::uint64_t count) {
                   for (std::uint64_t i = first; i < first + count; ++i) {
                     coding.clear(coding.row_at(missing_[i].first), 1);
                   }
                 });
  const std::uint64_t block = coding.block_bytes();
  call_.work.add(coding.layout().all_members(), block,
                 [this, &coding](std::uint64_t first, std::uint64_t count) {
                   coding.decode(reinterpret_cast<float*>(output_), {first, count});
                 });
  call_.work.add(gaps_.size(), block, [this](std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      fill(gaps_[i].first * sizeof(float), gaps_[i].count * sizeof(float));
    }
  });
}

void OutputCompletion::fill_missing(bool late_self, const HostSums* sums) {
  if (late_self) void_own_shard(sums != nullptr);
  find_missing(sums);
  const bool zero = call_.arguments.missing == MissingFill::zero;
  const bool divides = sums != nullptr && sums->function == ReduceOp::avg;
  call_.work.add(summed_.size(), call_.layout.slot_bytes(),
                 [=, this](std::uint64_t first, std::uint64_t count) {
                   for (std::uint64_t i = first; i < first + count; ++i) {
                     const auto& [bytes, ranks] = summed_[i];
                     if (zero) {
                       std::memset(output_ + bytes.first, 0, bytes.count);
                     } else {
                       scale(bytes.first, bytes.count, divides ? 1 : call_.world, ranks);
                     }
                   }
                 });
  call_.work.add(missing_.size(), call_.layout.slot_bytes(),
                 [this](std::uint64_t first, std::uint64_t count) {
                   for (std::uint64_t i = first; i < first + count; ++i)
                     fill(missing_[i].first, missing_[i].count);
                 });
}

/// Calls `change(offset, length)`, part by part.
template <typename Change>
void OutputCompletion::change_own_shard(Change change) {
  const Range own = call_.layout.shards().own;
  call_.work.add(slots(own.count, call_.layout.slot_bytes()), call_.layout.slot_bytes(),
                 [=, this](std::uint64_t first, std::uint64_t count) {
                   const std::uint64_t begin = first * call_.layout.slot_bytes();
                   change(own.first + begin,
                          std::min(count * call_.layout.slot_bytes(), own.count - begin));
                 });
}

void OutputCompletion::void_own_shard(bool over_hosts) {
  const AllreduceArguments& arguments = call_.arguments;
  if (output_ != input_ || arguments.missing == MissingFill::zero) {
    return change_own_shard(
        [this](std::uint64_t offset, std::uint64_t length) { fill(offset, length); });
  }
  const ContributorMasks& contributors = call_.reducer.contributors();
  const bool mixed =
      over_hosts || std::any_of(contributors.begin(), contributors.end(),
                                [&](std::uint64_t here) { return here != bit(call_.rank); });
  if (mixed) {
    // Our contribution is no longer available.
    change_own_shard([this](std::uint64_t offset, std::uint64_t length) {
      std::memset(output_ + offset, 0, length);
    });
    return;
  }
  // In place the reducer has settled the shard already. Some rules have scaled it up to all ranks.
  const Ratio settled = rescaling(call_.rescale, arguments.function, call_.world, 1);
  const std::uint32_t factor = local_factor() * settled.down / settled.up;
  if (factor == 1) return;
  change_own_shard([this, factor](std::uint64_t offset, std::uint64_t length) {
    scale(offset, length, factor, 1);
  });
}

/// The factor on this rank's contribution where it stands for those of all ranks.
std::uint32_t OutputCompletion::local_factor() const {
  return call_.arguments.function == ReduceOp::avg ? 1 : call_.world;
}

void OutputCompletion::fill(std::uint64_t offset, std::uint64_t length) const {
  const AllreduceArguments& arguments = call_.arguments;
  if (arguments.missing == MissingFill::zero) {
    std::memset(output_ + offset, 0, length);
    return;
  }
  if (output_ != input_) std::memcpy(output_ + offset, input_ + offset, length);
  scale(offset, length, local_factor(), 1);
}

void OutputCompletion::scale(std::uint64_t offset, std::uint64_t length, std::uint32_t up,
                             std::uint32_t down) const {
  const AllreduceArguments& arguments = call_.arguments;
  std::byte* const at = output_ + offset;
  reduce_kernels(arguments.type, arguments.function)
      .scale(at, at, length / element_bytes(arguments.type), up, down);
}

/// Nothing reads the buffers any more, not even in place.
void OutputCompletion::fill_with_nan() {
  const auto fill_all = [this](auto nan) {
    const Range elements = call_.layout.elements();
    if (elements.count == 0) return;
    std::byte* const first_byte = output_ + elements.first * sizeof nan;
    call_.work.add(elements.count, sizeof nan,
                   [output = first_byte, nan](std::uint64_t first, std::uint64_t count) {
                     for (std::uint64_t i = first; i < first + count; ++i) {
                       std::memcpy(output + i * sizeof nan, &nan, sizeof nan);
                     }
                   });
  };
  constexpr std::uint16_t kFloat16Nan = 0x7e00;
  constexpr std::uint16_t kBfloat16Nan = 0x7fc0;
  switch (call_.arguments.type) {
    case DataType::float64:
      return fill_all(std::numeric_limits<double>::quiet_NaN());
    case DataType::float16:
      return fill_all(kFloat16Nan);
    case DataType::bfloat16:
      return fill_all(kBfloat16Nan);
    default:
      return fill_all(std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace tarpon
