// The arguments of a call as the engine has them: those of an AllReduce, or of another collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "collectives/allreduce.h"
#include "collectives/collective.h"
#include "collectives/engine/schedules/collective_parts.h"

namespace tarpon {

/// Whether the two ranges of memory share a byte.
bool overlap(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes);

/// The address `bytes` after `buffer`. By arithmetic of integers, modulo 2^64: the result may lie
/// outside of the buffer, and an empty buffer may be null.
template <typename Byte>
Byte* shifted(Byte* buffer, std::uint64_t bytes) {
  return reinterpret_cast<Byte*>(reinterpret_cast<std::uintptr_t>(buffer) + bytes);
}

/// The tag of the operation that runs the call of rank `rank`: that of the arguments, or one of the
/// two ranks of a message.
std::uint32_t operation_tag(const CollectiveArguments& call, Rank rank);

/// `count` is that of the bucket: of a collective other than AllReduce, the elements of all parts.
struct CallArguments : AllreduceArguments {
  CallArguments() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): every AllReduce is a call
  CallArguments(AllreduceArguments call) : AllreduceArguments(std::move(call)) {}
  /// Throws std::bad_alloc. REQUIRES: rank < world.
  CallArguments(const CollectiveArguments& call, std::uint32_t world, Rank rank);

  std::shared_ptr<const CollectiveParts> parts;  // null: an AllReduce
  std::string wrong;  // an error in the arguments of a collective; empty: none

  /// Where element 0 of the bucket would be in the input, and in the output, of `rank`.
  const std::byte* bucket_input(Rank rank) const {
    return first_element(static_cast<const std::byte*>(input),
                         parts ? parts->input(rank) : Range{});
  }
  std::byte* bucket_output(Rank rank) const {
    return first_element(static_cast<std::byte*>(output), parts ? parts->output(rank) : Range{});
  }

 private:
  template <typename Byte>
  Byte* first_element(Byte* buffer, const Range& held) const {
    return shifted(buffer, std::uint64_t{0} - held.first * element_bytes(type));
  }
};

/// The same of any collective. An all_gather adds nothing, so that it may be bounded with elements
/// of any type.
bool may_run_bounded(const CallArguments& arguments);

}  // namespace tarpon
