// The owner's side of a TAR: adds contributions to the owner's shard as they arrive, and tells how
// many slots wait for no more contributions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/call/buffers.h"
#include "collectives/engine/call/rescaling.h"
#include "collectives/engine/kernels/reduce.h"
#include "transport/endpoint.h"

namespace tarpon {

/// Payload is reduced straight from the receive buffer into `accumulator`, the owner's shard of the
/// output. The first contribution to a slot reads the owner's own one from `own`, so that an
/// out-of-place call copies nothing beforehand.
///
/// Partial results that are not elements (needs_partials()) take twice the memory of elements, and
/// a large call spends its time waiting for memory. So the first two contributions to a slot wait
/// in `partials` unchanged. With the next one the sum is made in a buffer of one slot, which stays
/// in the first cache. The sum goes to the accumulator if that was the last contribution, else to
/// `partials`.
class Reducer : public Sink, public Source {
 public:
  struct Shape {
    SlotArray<const std::byte> own;    // the owner's contribution to its shard
    SlotArray<std::byte> accumulator;  // may be the same memory
    std::uint64_t bytes = 0;
    std::uint32_t slot_bytes = 0;
    DataType type = DataType::float32;
    ReduceOp function = ReduceOp::sum;
    Rank rank = 0;
    std::uint32_t world = 0;
    Rescale rescale = Rescale::count;
    // A float for each element of the shard, if uses_partials(); else null. Outlives the reducer.
    float* partials = nullptr;
    std::pmr::memory_resource* memory = std::pmr::new_delete_resource();
  };

  explicit Reducer(const Shape& shape);

  /// Whether a call needs Shape::partials: a slot of two contributions goes from elements to
  /// elements.
  static bool uses_partials(DataType type, ReduceOp function, std::uint32_t world) {
    return needs_partials(type, function) && world > 2;
  }

  void deliver(const IncomingRun& run) override;
  /// Notes that the contribution of `from` to the slot will not arrive.
  void lost(Rank from, std::uint32_t slot) override;
  OutgoingRun lend(std::uint32_t first, std::uint32_t most) override;

  /// Slots [0, ready()) hold every contribution that can still arrive.
  std::uint32_t ready() const { return ready_; }

  /// Makes the next `count` slots ready, because no more contributions arrive. Slots that lack
  /// contributions are scaled by Shape::rescale here, or earlier: as soon as all contributions
  /// that they lack are known to be lost.
  /// REQUIRES: ready() + count <= slots().
  void settle(std::uint32_t count);

  std::uint32_t slots() const { return static_cast<std::uint32_t>(contributors_.size()); }
  const ContributorMasks& contributors() const { return contributors_; }

 private:
  std::size_t length(std::uint32_t slot) const;
  bool settled(std::uint32_t slot) const;
  bool waits(std::uint64_t present) const;
  std::byte* sums(std::uint32_t slot) const;
  std::byte* sum_of_waiting(std::uint32_t slot, std::uint64_t present);
  void add(Rank from, std::uint32_t slot, std::span<const std::byte> payload);
  void rescale(std::uint32_t slot);
  void advance();

  Shape shape_;
  const ReduceKernels& kernels_;
  std::uint64_t everybody_;
  ContributorMasks contributors_;    // per slot, the owner's own included
  std::vector<std::uint64_t> lost_;  // per slot: ranks whose contributions are lost; or empty
  std::pmr::vector<float> sum_;      // of one slot, with partials
  std::uint32_t ready_ = 0;
};

}  // namespace tarpon
