// How a bucket goes through the memory of a host: in which steps, and which rank adds up what.
//
// A value, from the arguments of a call and the shape of the memory alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "collectives/allreduce.h"
#include "collectives/engine/schedules/shards.h"
#include "collectives/hosts/host_memory.h"

namespace tarpon {

class HostPlan {
 public:
  HostPlan(const AllreduceArguments& call, const hosts::HostShape& shape)
      : ranks_(shape.ranks),
        count_(call.count),
        step_(shape.place_bytes / element_bytes(call.type)),
        alignment_(kSliceBytes / element_bytes(call.type)),
        whole_(bucket_bytes(call) <=
               std::min<std::uint64_t>(kWholeBytes / shape.ranks, shape.place_bytes)) {}

  /// Whether every rank adds up the whole bucket, in one step.
  bool whole() const { return whole_; }
  /// An empty bucket has one step, too.
  std::uint32_t steps() const {
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (count_ + step_ - 1) / step_));
  }
  /// The elements of a step.
  Range range(std::uint32_t step) const {
    const std::uint64_t first = std::uint64_t{step} * step_;
    return {first, std::min(step_, count_ - first)};
  }
  /// The elements of a step that local rank `rank` adds up, counted from the beginning of the step.
  /// REQUIRES: not whole().
  Range slice(std::uint32_t step, std::uint32_t rank) const {
    const std::uint64_t count = range(step).count;
    const std::uint64_t units = (count + alignment_ - 1) / alignment_;
    const auto begin = [&](std::uint64_t number) {
      return std::min(count, units * number / ranks_ * alignment_);
    };
    return {begin(rank), begin(rank + 1) - begin(rank)};
  }

 private:
  // Up to this many bytes of all ranks together, each rank adds up the whole bucket: to read them
  // costs less than to wait for the slices of the others.
  static constexpr std::uint64_t kWholeBytes = 256 << 10;
  // Slices begin at multiples of this, so that two ranks do not write to one cache line.
  static constexpr std::uint64_t kSliceBytes = 64;

  std::uint64_t ranks_;
  std::uint64_t count_;
  std::uint64_t step_;       // elements
  std::uint64_t alignment_;  // of slices, in elements
  bool whole_;
};

}  // namespace tarpon
