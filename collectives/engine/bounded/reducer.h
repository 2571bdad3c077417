// The owner's side of a TAR: adds contributions to the owner's shard as they arrive, and tells how
// many slots wait for no more contributions.
#pragma once

#include <algorithm>
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
///
/// Where ranks share hosts, each host contributes the sum of its ranks, which its packets name. The
/// own sum comes later, by provide(): what arrives before it is added up in `parked`.
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
    std::uint32_t world = 0;  // ranks that contribute
    // Bit r: rank r sends contributions here, or is this rank. 0: all ranks.
    std::uint64_t senders = 0;
    // Of hosts, by sender: the ranks of its host, whose data it may send. Bit r: rank r.
    std::vector<std::uint64_t> carried = {};
    // Of hosts: parked_floats() floats; else null. Outlives the reducer.
    float* parked = nullptr;
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
  /// How many floats Shape::parked has for a shard of `elements`.
  static std::uint64_t parked_floats(DataType type, std::uint64_t elements) {
    return std::max<std::uint64_t>(1, elements) * parked_width(type) / sizeof(float);
  }

  /// The next `count` slots of Shape::own are there: sums of the ranks `contributors`. REQUIRES:
  /// Shape::parked.
  void provide(std::uint32_t count, std::uint64_t contributors);
  /// How many slots of the own sum are there.
  std::uint32_t provided() const { return provided_; }

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

  /// The ranks that a slot which is ready lacks. Bit r: rank r.
  std::uint64_t lacked() const { return lacked_; }

  std::uint32_t slots() const { return static_cast<std::uint32_t>(contributors_.size()); }
  const ContributorMasks& contributors() const { return contributors_; }
  ContributorMasks& contributors() { return contributors_; }

 private:
  static std::size_t parked_width(DataType type) {
    return std::max(element_bytes(type), sizeof(float));
  }
  bool of_hosts() const { return shape_.parked != nullptr; }
  /// Bit r: the contribution that rank r sends to the slot is there.
  std::uint64_t& arrived(std::uint32_t slot) {
    return of_hosts() ? arrived_[slot] : contributors_[slot];
  }
  std::uint64_t arrived(std::uint32_t slot) const {
    return of_hosts() ? arrived_[slot] : contributors_[slot];
  }
  std::byte* parked(std::uint32_t slot) const;
  void park(Rank from, std::uint32_t slot, std::span<const std::byte> payload);
  void combine(std::uint32_t slot, std::uint64_t before, std::span<const std::byte> payload);
  void finish(std::uint32_t slot, const ReduceStep& step, const std::byte* a, const std::byte* b,
              std::size_t elements);
  std::size_t length(std::uint32_t slot) const;
  bool settled(std::uint32_t slot) const;
  bool waits(std::uint64_t present) const;
  std::byte* sums(std::uint32_t slot) const;
  std::byte* sum_of_waiting(std::uint32_t slot, std::uint64_t present);
  void add(Rank from, std::uint64_t contributors, std::uint32_t slot,
           std::span<const std::byte> payload);
  void rescale(std::uint32_t slot);
  Ratio factor(std::uint32_t slot) const;
  void advance();

  Shape shape_;
  const ReduceKernels& kernels_;
  const std::uint64_t everybody_;  // bit r: rank r contributes
  ContributorMasks contributors_;  // per slot, the owner's own included
  ContributorMasks arrived_;       // of hosts, per slot: arrived()
  std::uint32_t provided_ = 0;
  std::uint64_t lacked_ = 0;
  std::vector<std::uint64_t> lost_;  // per slot: ranks whose contributions are lost; or empty
  std::pmr::vector<float> sum_;      // of one slot, with partials
  std::vector<std::byte> single_;    // of hosts: one contribution, while two are added up
  std::uint32_t ready_ = 0;
};

}  // namespace tarpon
