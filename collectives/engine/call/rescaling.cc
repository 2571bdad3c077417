#include "collectives/engine/call/rescaling.h"

namespace tarpon {

Ratio rescaling(Rescale rule, ReduceOp function, std::uint32_t world, std::uint32_t count) {
  const bool divides = function == ReduceOp::avg;
  if (rule == Rescale::none) return {1, divides ? world : 1};
  return {divides ? 1 : world, count};
}

}  // namespace tarpon
