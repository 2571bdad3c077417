// Where the shards of a TAR call lie: in the caller's buffers, or in the coded bucket. Those of a
// reduce_scatter and an all_gather are their parts.
//
// A value. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/engine/call/buffers.h"
#include "collectives/engine/call/call_arguments.h"
#include "collectives/engine/coded/coding.h"
#include "collectives/engine/schedules/host_plan.h"
#include "collectives/engine/schedules/tar_shards.h"
#include "transport/rank_mask.h"

namespace tarpon {

class CallLayout {
 public:
  /// `coding`: of a coded call, else nullptr; its rows outlive the layout. `turn`: the operation
  /// number by which ownership rotates. `slot_bytes`: of an uncoded call.
  CallLayout(const CallArguments& arguments, Coding* coding, std::uint16_t world, Rank rank,
             std::uint32_t turn, std::uint32_t slot_bytes);

  /// Of a bounded call over hosts (host_plan.h): the shards of all owners. `host`, `self`: this
  /// rank's host, and its place there.
  CallLayout(const AllreduceArguments& arguments, const HostPlan& plan,
             const hosts::HostLayout& layout, std::uint32_t host, std::uint32_t self,
             std::uint32_t turn, std::uint32_t slot_bytes);

  /// In bytes.
  const TarShards& shards() const { return shards_; }
  /// The ranks with which this one exchanges packets. Bit r: rank r.
  std::uint64_t partners() const { return partners_; }
  bool is_partner(Rank rank) const { return (partners_ & bit(rank)) != 0; }
  /// From which rank this one gets the result of the shard `number` of shards().others: from its
  /// owner, or from the rank of this host that owns its slice.
  Rank provider(std::size_t number) const {
    return providers_.empty() ? shards_.others[number].owner : providers_[number];
  }
  /// The ranks whose contributions to a shard cannot come if the ranks `gone` are: these, and those
  /// whose sums these would send. Of the own shard, and of the shard `number` of shards().others.
  std::uint64_t lost_with(std::uint64_t gone) const {
    return owners_.empty() ? gone : lost_with_owners(gone, own_owners_);
  }
  std::uint64_t lost_with(std::uint64_t gone, std::size_t number) const {
    return owners_.empty() ? gone : lost_with_owners(gone, owners_[number]);
  }
  /// The ranks whose contributions `partner` sends: itself, or those of its host. Bit r: rank r.
  std::uint64_t carried_by(Rank partner) const {
    return carried_.empty() ? bit(partner) : carried_[partner];
  }
  std::uint32_t slot_bytes() const { return slot_bytes_; }
  /// Bytes from one slot of a shard to the next.
  std::uint64_t slot_stride() const { return slot_stride_; }
  std::uint32_t element_bytes() const { return element_bytes_; }
  /// Length of the result in the unit of runs: elements of the result, or of the coded bucket.
  std::uint64_t positions() const { return positions_; }
  /// Whether a gather follows the scatter: in an AllReduce alone.
  bool gathers() const { return gathers_; }
  /// Elements of the bucket that the result has.
  Range elements() const { return elements_; }

  /// The slots of the result, or of the coded bucket.
  SlotArray<std::byte> result_at(std::uint64_t first_byte) const {
    return {shifted(result_, first_byte), slot_stride_};
  }
  /// The slots of this rank's contribution.
  SlotArray<const std::byte> input_at(std::uint64_t first_byte) const {
    return {shifted(input_, first_byte), slot_stride_};
  }
  /// Bytes of a slot of a shard of `bytes`.
  std::uint64_t length_of(std::uint64_t bytes, std::uint32_t slot) const {
    return slot_length(bytes, slot_bytes_, slot);
  }

 private:
  std::uint64_t lost_with_owners(std::uint64_t gone, std::uint64_t owners) const;

  TarShards shards_;
  std::uint64_t partners_;
  std::vector<Rank> providers_;         // over hosts, by number in shards_.others
  std::vector<std::uint64_t> carried_;  // over hosts, by rank
  // Over hosts: the owners of the slice, of each other shard, and of the own one. Bit r: rank r.
  std::vector<std::uint64_t> owners_;
  std::uint64_t own_owners_ = 0;
  std::uint32_t slot_bytes_;
  std::uint64_t slot_stride_;
  std::uint32_t element_bytes_;
  bool gathers_ = true;
  Range elements_;
  std::uint64_t positions_;
  const std::byte* input_;
  std::byte* result_;
};

}  // namespace tarpon
