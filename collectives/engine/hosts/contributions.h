// Adds up the contributions of ranks that lie side by side in memory.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/kernels/reduce.h"

namespace tarpon {

class Contributions {
 public:
  struct Shape {
    DataType type = DataType::float32;
    ReduceOp function = ReduceOp::sum;
    CustomFunction custom = {};  // if the function is custom
    std::uint32_t ranks = 1;     // avg divides by it
  };

  /// Throws std::bad_alloc.
  explicit Contributions(const Shape& shape);

  /// Writes the result of `elements` elements of each of `from` to `out`, in the order of `from`:
  /// (((0 + 1) + 2) + 3). Works in blocks that stay in the first-level cache. `out` overlaps none
  /// of them, or is one of them.
  void add_up(std::byte* out, std::span<const std::byte* const> from, std::uint64_t elements);

 private:
  static constexpr std::uint64_t kBlockBytes = 8 << 10;

  void add_block(std::byte* out, std::uint64_t first, std::uint64_t elements,
                 std::span<const std::byte* const> from);

  const Shape shape_;
  const ReduceKernels& kernels_;
  std::vector<std::byte> sums_;  // of a block: the result may lie where a contribution does
};

/// The shape of the sums of a host. `last`: they are results, else they are added up over hosts.
/// `world`: ranks of the communicator.
Contributions::Shape sums_of_host(const AllreduceArguments& call, bool last, std::uint32_t world);

}  // namespace tarpon
