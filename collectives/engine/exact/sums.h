// The arithmetic of a scheduled call: adds up contributions and partial results.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/kernels/reduce.h"
#include "collectives/engine/schedules/shards.h"

namespace tarpon {

/// The sums of a range are partial results until the last addition, then elements in the output.
/// Partial results are elements and lie in the output too, unless needs_partials(). Not
/// thread-safe.
class Sums {
 public:
  struct Shape {
    std::byte* output = nullptr;  // the bucket's elements
    std::size_t most_bytes = 0;   // maximum bytes of the elements of an add()
    DataType type = DataType::float32;
    ReduceOp function = ReduceOp::sum;
    std::uint32_t world = 0;
    CustomFunction custom = {};  // if the function is custom
    float* partials = nullptr;   // a float for each place, if needs_partials(); else null
  };

  explicit Sums(const Shape& shape);

  /// Elements, or partial results, in memory.
  struct Operand {
    const std::byte* data = nullptr;
    bool partial = false;  // false where partial results are elements
  };

  /// Bytes of an element, and of a partial result.
  std::size_t width(bool partial) const;
  std::byte* result(std::uint64_t first) const;
  /// Partial results of the elements from `first` on, which have the places from `place` on.
  std::byte* partial(std::uint64_t first, std::uint64_t place) const;

  /// Writes `a` + `b` for the elements `range`: as the result if it is the `last` addition, else as
  /// partial results. Either operand may lie there.
  void add(Range range, std::uint64_t place, Operand a, Operand b, bool last);

 private:
  void add_partials(Range range, std::uint64_t place, const std::byte* a, const std::byte* b,
                    bool last) const;
  const std::byte* apart(const std::byte* b, Range range);

  Shape shape_;
  const ReduceKernels& kernels_;
  std::vector<std::byte> apart_;  // a copy of the second operand
};

}  // namespace tarpon
