// What each rule of Rescale makes of contributions that are lost at random: the weight that the
// owner's own and a remote one have in the result, on average over seeded losses. The bias of a
// rule is what these lie off 1.
#include "collectives/engine/call/rescaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "collectives/engine/bounded/reducer.h"
#include "tests/support/deliver.h"
#include "transport/random.h"

namespace tarpon::rescale_test {
namespace {

constexpr std::uint64_t kSeed = 20240607;
constexpr std::uint32_t kSlotBytes = 64;  // 16 floats: rank r's contribution is 1 in element r
constexpr std::uint32_t kSlots = 64;
constexpr int kOperations = 3000;

struct Weights {
  double own = 0, remote = 0;
  double deviation = 0;  // of the remote one, from slot to slot
};

/// One operation at owner 0: its shard after losses.
std::vector<float> reduce_once(std::uint32_t world, double p, Rescale rescale, Random& random) {
  const auto elements = std::size_t{kSlots} * kSlotBytes / 4;
  std::vector<float> own(elements), result(elements);
  for (std::size_t i = 0; i < elements; i += 16) own[i] = 1;
  Reducer::Shape shape;
  shape.own = {reinterpret_cast<const std::byte*>(own.data()), kSlotBytes};
  shape.accumulator = {reinterpret_cast<std::byte*>(result.data()), kSlotBytes};
  shape.bytes = elements * 4;
  shape.slot_bytes = kSlotBytes;
  shape.world = world;
  shape.rescale = rescale;
  Reducer reducer(shape);
  for (Rank from = 1; from < world; ++from) {
    std::vector<float> payload(16);
    payload[from] = 1;
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      if (random.chance(p)) continue;
      testing_support::deliver(reducer, from, slot, std::as_bytes(std::span(payload)));
    }
  }
  reducer.settle(reducer.slots() - reducer.ready());
  return result;
}

Weights average(std::uint32_t world, double p, Rescale rescale) {
  Random random(kSeed);
  Weights sum;
  double squares = 0;
  for (int i = 0; i < kOperations; ++i) {
    const std::vector<float> result = reduce_once(world, p, rescale, random);
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      sum.own += static_cast<double>(result[slot * 16]);
      for (Rank from = 1; from < world; ++from) {
        const auto weight = static_cast<double>(result[slot * 16 + from]);
        sum.remote += weight / (world - 1);
        squares += weight * weight / (world - 1);
      }
    }
  }
  constexpr double kSamples = static_cast<double>(kOperations) * kSlots;
  const double remote = sum.remote / kSamples;
  return {sum.own / kSamples, remote, std::sqrt(squares / kSamples - remote * remote)};
}

TEST(RescaleTest, bias__of_each_rule) {
  std::printf("seed %llu; weight on average (bias), %d slots\n",
              static_cast<unsigned long long>(kSeed), kOperations * static_cast<int>(kSlots));
  std::printf("%6s %6s  %-8s %20s %20s %10s\n", "ranks", "loss", "rule", "own", "remote",
              "deviation");
  for (const auto& [world, p] : {std::pair(2u, 0.05), std::pair(4u, 0.01), std::pair(4u, 0.25),
                                 std::pair(8u, 0.05), std::pair(8u, 0.2)}) {
    const double kept = 1 - p;
    const double owned = (1 - std::pow(p, world)) / kept;
    for (const Rescale rule : {Rescale::count, Rescale::none}) {
      const Weights seen = average(world, p, rule);
      std::printf("%6u %5.0f%%  %-8s %9.4f (%+7.2f %%) %9.4f (%+7.2f %%) %10.4f\n", world, p * 100,
                  std::string(name(rule)).c_str(), seen.own, (seen.own - 1) * 100, seen.remote,
                  (seen.remote - 1) * 100, seen.deviation);
      double own = 1, remote = 1;
      if (rule == Rescale::count) own = owned, remote = (world - owned) / (world - 1);
      if (rule == Rescale::none) remote = kept;
      EXPECT_NEAR(seen.own, own, 0.01);
      EXPECT_NEAR(seen.remote, remote, 0.01);
    }
  }
}

TEST(RescaleTest, factor__of_each_rule) {
  const auto factor = [](Rescale rule, ReduceOp function, std::uint32_t count) {
    const Ratio ratio = rescaling(rule, function, 8, count);
    return static_cast<double>(ratio.up) / ratio.down;
  };
  EXPECT_DOUBLE_EQ(factor(Rescale::count, ReduceOp::sum, 5), 8.0 / 5);
  EXPECT_DOUBLE_EQ(factor(Rescale::count, ReduceOp::avg, 5), 1.0 / 5);
  EXPECT_DOUBLE_EQ(factor(Rescale::none, ReduceOp::sum, 5), 1);
  EXPECT_DOUBLE_EQ(factor(Rescale::none, ReduceOp::avg, 5), 1.0 / 8);
}

}  // namespace
}  // namespace tarpon::rescale_test
