// How a bucket goes through the memory of hosts: in which steps, and which rank adds up what.
//
// Slice l of the bucket belongs to local rank l of every host, its owner. A slice has a shard for
// each host. A step takes a piece of each shard of each slice. So all owners work from the first
// step on, and so do all hosts.
//
// A value, from the arguments of a call and the shape of the job alone: alike on all ranks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "collectives/allreduce.h"
#include "collectives/engine/schedules/shards.h"
#include "collectives/hosts/host_layout.h"
#include "collectives/hosts/host_memory.h"

namespace tarpon {

class HostPlan {
 public:
  /// `shape`: of the memory of any host. Its number of ranks counts where there is one host.
  /// `slot_bytes`: of a bounded call, whose pieces are whole slots of the shards, and whose places
  /// also hold the contributors to each slot of a result. 0: of an exact call. REQUIRES: a bounded
  /// call fits().
  HostPlan(const AllreduceArguments& call, const hosts::HostLayout& layout,
           const hosts::HostShape& shape, std::uint32_t slot_bytes = 0)
      : hosts_(static_cast<std::uint32_t>(layout.count())),
        element_bytes_(element_bytes(call.type)),
        slot_bytes_(slot_bytes),
        place_bytes_(shape.place_bytes),
        whole_(hosts_ == 1 && slot_bytes == 0 &&
               bucket_bytes(call) <=
                   std::min<std::uint64_t>(kWholeBytes / shape.ranks, shape.place_bytes)),
        owners_(whole_ ? 1 : owners_of(bucket_bytes(call), layout, shape)),
        parts_(std::max(1u, (slot_bytes == 0 ? owners_ : layout.owners()) * hosts_)),
        slices_{call.count, element_bytes_, owners_},
        piece_(whole_ ? std::max<std::uint64_t>(call.count, 1) : piece_elements()),
        steps_(static_cast<std::uint32_t>(
            std::max<std::uint64_t>(1, (shard(0, 0).count + piece_ - 1) / piece_))) {}

  /// Whether a host divides its sums for an average. Half precision would overflow if all hosts did
  /// that together at the end.
  static bool divides_in_host(const AllreduceArguments& call) {
    return call.function == ReduceOp::avg && is_half(call.type);
  }
  /// The function that puts the sums of several hosts together.
  static ReduceOp function_over_hosts(const AllreduceArguments& call) {
    return divides_in_host(call) ? ReduceOp::sum : call.function;
  }

  /// Whether every rank of the only host adds up the whole bucket, in one step.
  bool whole() const { return whole_; }
  std::uint32_t hosts() const { return hosts_; }
  /// Local ranks from here on own nothing.
  std::uint32_t owners() const { return owners_; }
  /// An empty bucket has one step, too.
  std::uint32_t steps() const { return steps_; }

  /// The elements of a slice, and of one of its shards.
  Range slice(std::uint32_t owner) const { return slices_.elements(owner); }
  Range shard(std::uint32_t owner, std::uint32_t number) const {
    const Range all = slice(owner);
    const Range part = ShardLayout{all.count, element_bytes_, hosts_}.elements(number);
    return {all.first + part.first, part.count};
  }
  /// The elements of a step in a shard. Empty behind the end of a short shard.
  Range piece(std::uint32_t step, std::uint32_t owner, std::uint32_t number) const {
    const Range all = shard(owner, number);
    const std::uint64_t first = std::min(all.count, step * piece_);
    return {all.first + first, std::min(piece_, all.count - first)};
  }
  /// Elements of a shard up to the end of a step.
  std::uint64_t reached(std::uint32_t step, std::uint32_t owner, std::uint32_t number) const {
    return std::min(shard(owner, number).count, (step + 1) * piece_);
  }
  /// Where a piece lies in a place, in bytes.
  std::uint64_t offset(std::uint32_t owner, std::uint32_t number) const {
    return (std::uint64_t{owner} * hosts_ + number) * piece_ * element_bytes_;
  }
  /// Slots of a full piece. Of bounded calls.
  std::uint32_t piece_slots() const {
    return static_cast<std::uint32_t>(piece_ * element_bytes_ / slot_bytes_);
  }
  /// Where the contributors to the slots of a piece lie in a place, in bytes. Of bounded calls.
  std::uint64_t contributors_offset(std::uint32_t owner, std::uint32_t number) const {
    const std::uint64_t before = std::uint64_t{owner} * hosts_ + number;
    return place_bytes_ - (parts_ - before) * piece_slots() * sizeof(std::uint64_t);
  }
  /// Whether a bounded call can take its steps in places of `shape`.
  static bool fits(const hosts::HostLayout& layout, const hosts::HostShape& shape,
                   std::uint32_t slot_bytes) {
    const std::uint64_t shards = std::uint64_t{layout.owners()} * layout.count();
    return shards * (slot_bytes + sizeof(std::uint64_t)) <= shape.place_bytes;
  }
  /// Elements of the first `steps` steps in the slice of local rank `owner`, which may own none.
  std::uint64_t elements(std::uint32_t owner, std::uint32_t steps) const {
    std::uint64_t sum = 0;
    for (std::uint32_t number = 0; number < hosts_ && owner < owners_; ++number) {
      sum += std::min(shard(owner, number).count, steps * piece_);
    }
    return sum;
  }

 private:
  // Up to this many bytes of all ranks together, each rank adds up the whole bucket: to read them
  // costs less than to wait for the slices of the others.
  static constexpr std::uint64_t kWholeBytes = 256 << 10;
  static std::uint32_t owners_of(std::uint64_t bytes, const hosts::HostLayout& layout,
                                 const hosts::HostShape& shape) {
    if (layout.count() == 1) return layout.owners();
    const std::uint64_t filled = bytes / (std::uint64_t{shape.least_shard} * layout.count());
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(filled, 1, layout.owners()));
  }

  /// Pieces begin at multiples of kShardAlignment, so that two ranks do not write to one cache
  /// line.
  std::uint64_t piece_elements() const {
    const std::uint64_t bytes = place_bytes_ / parts_;
    if (slot_bytes_ != 0) {
      return bytes / (slot_bytes_ + sizeof(std::uint64_t)) * slot_bytes_ / element_bytes_;
    }
    const std::uint64_t units = std::max<std::uint64_t>(1, bytes / kShardAlignment);
    return units * kShardAlignment / element_bytes_;
  }

  std::uint32_t hosts_;
  std::size_t element_bytes_;
  std::uint32_t slot_bytes_;
  std::uint64_t place_bytes_;
  bool whole_;
  std::uint32_t owners_;
  // Of a place, one for each shard. In bounded calls a rank has the same parts whatever the bucket:
  // a rank that is left out may still write there.
  std::uint32_t parts_;
  ShardLayout slices_;
  std::uint64_t piece_;  // elements
  std::uint32_t steps_;
};

}  // namespace tarpon
