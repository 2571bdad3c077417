#include "collectives/engine/call/rescaling.h"

namespace tarpon {
namespace {

Ratio by_count(ReduceOp function, std::uint32_t world, std::uint32_t count) {
  return {function == ReduceOp::avg ? 1 : world, count};
}

Ratio by_world(ReduceOp function, std::uint32_t world, std::uint32_t) {
  return {1, function == ReduceOp::avg ? world : 1};
}

std::vector<double> equal_weights(const SenderLoss&) {
  return {};
}

std::vector<double> inverse_weights(const SenderLoss& losses) {
  return losses.weights();
}

constexpr Rescaling kByCount{by_count, equal_weights};
constexpr Rescaling kByLoss{by_world, inverse_weights};
constexpr Rescaling kUnscaled{by_world, equal_weights};

}  // namespace

const Rescaling& rescaling_by(Rescale rule) {
  switch (rule) {
    case Rescale::count:
      break;
    case Rescale::inverse:
      return kByLoss;
    case Rescale::none:
      return kUnscaled;
  }
  return kByCount;
}

}  // namespace tarpon
