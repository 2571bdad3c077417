// Where the shards of a TAR call lie: in the caller's buffers, or in the coded bucket.
//
// A value. Not thread-safe.
#pragma once

#include <cstdint>

#include "collectives/allreduce.h"
#include "collectives/engine/call/buffers.h"
#include "collectives/engine/coded/coding.h"
#include "collectives/engine/schedules/tar_shards.h"

namespace tarpon {

class CallLayout {
 public:
  /// `coding`: of a coded call, else nullptr; its rows outlive the layout. `turn`: the operation
  /// number by which ownership rotates. `slot_bytes`: of an uncoded call.
  CallLayout(const AllreduceArguments& arguments, Coding* coding, std::uint16_t world, Rank rank,
             std::uint32_t turn, std::uint32_t slot_bytes);

  /// In bytes.
  const TarShards& shards() const { return shards_; }
  std::uint32_t slot_bytes() const { return slot_bytes_; }
  /// Bytes from one slot of a shard to the next.
  std::uint64_t slot_stride() const { return slot_stride_; }
  std::uint32_t element_bytes() const { return element_bytes_; }
  /// Length of the bucket in the unit of runs: elements of the bucket, or of the coded one.
  std::uint64_t positions() const { return positions_; }

  /// The slots of the result, or of the coded bucket.
  SlotArray<std::byte> result_at(std::uint64_t first_byte) const {
    return {result_ + first_byte, slot_stride_};
  }
  /// The slots of this rank's contribution.
  SlotArray<const std::byte> input_at(std::uint64_t first_byte) const {
    return {input_ + first_byte, slot_stride_};
  }
  /// Bytes of a slot of a shard of `bytes`.
  std::uint64_t length_of(std::uint64_t bytes, std::uint32_t slot) const {
    return slot_length(bytes, slot_bytes_, slot);
  }

 private:
  TarShards shards_;
  std::uint32_t slot_bytes_;
  std::uint64_t slot_stride_;
  std::uint32_t element_bytes_;
  std::uint64_t positions_;
  const std::byte* input_;
  std::byte* result_;
};

}  // namespace tarpon
