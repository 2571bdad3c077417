// What a seed stands for: the plan of the job, and its calls with their contents.
#include <fmt/format.h>

#include <cstring>

#include "tools/reference.h"
#include "tools/simulation_call.h"
#include "transport/random.h"

namespace tarpon {
namespace {

/// Exact runs take values whose sum depends on the order of addition.
template <typename T>
T draw_value(bool coded, Random& random, Rank rank) {
  if (coded) return static_cast<T>(coded_value(rank));
  const auto raw = static_cast<std::int64_t>(random.below(2'000'001)) - 1'000'000;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(raw % 1000);
  return static_cast<T>(raw) / static_cast<T>(997);
}

std::vector<std::byte> draw_input(const SimulatedCall& call, bool coded, Random& random,
                                  Rank rank) {
  std::vector<std::byte> bytes(call.count * element_bytes(call.type));
  with_element_type(call.type, [&](auto value) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof value) {
      value = draw_value<decltype(value)>(coded, random, rank);
      std::memcpy(bytes.data() + at, &value, sizeof value);
    }
  });
  return bytes;
}

SimulatedCall draw_call(const SimulationPlan& plan, Random& random, std::uint32_t tag,
                        std::uint32_t number) {
  SimulatedCall call;
  call.tag = tag;
  call.number = number;
  // Small counts have their own corner cases: empty and short shards.
  call.count = random.chance(0.2) ? random.below(std::uint64_t{2} * plan.ranks)
                                  : random.below(plan.most_elements + 1);
  call.type = plan.bounded ? DataType::float32 : static_cast<DataType>(random.below(kDataTypes));
  call.function = plan.bounded ? (random.chance(0.5) ? ReduceOp::sum : ReduceOp::avg)
                               : static_cast<ReduceOp>(random.below(kReduceOps));
  call.in_place = random.chance(0.5);
  for (Rank rank = 0; rank < plan.ranks; ++rank) {
    const auto skew = static_cast<std::uint64_t>(plan.skew.count());
    call.submit_at.push_back(
        Time(number * 100us + Duration(static_cast<std::int64_t>(random.below(skew + 1)))));
    std::vector<std::byte> input = draw_input(call, plan.bounded, random, rank);
    call.outputs.push_back(call.in_place ? input : std::vector<std::byte>(input.size()));
    call.inputs.push_back(std::move(input));
  }
  call.pending.resize(plan.ranks);
  return call;
}

}  // namespace

std::vector<SimulatedCall> plan_calls(const SimulationPlan& plan) {
  Random random(plan.seed ^ 0x63616c6c73);
  std::vector<SimulatedCall> calls;
  for (std::uint32_t number = 0; number < plan.calls_per_tag; ++number) {
    for (std::uint32_t tag = 0; tag < plan.tags; ++tag) {
      calls.push_back(draw_call(plan, random, tag, number));
    }
  }
  return calls;
}

SimulationPlan plan_simulation(std::uint64_t seed) {
  Random random(seed);
  SimulationPlan plan;
  plan.seed = seed;
  plan.ranks = static_cast<std::uint16_t>(2 + random.below(7));
  plan.slot_bytes = static_cast<std::uint32_t>(64 * (1 + random.below(22)));
  plan.tags = static_cast<std::uint32_t>(1 + random.below(3));
  plan.calls_per_tag = static_cast<std::uint32_t>(1 + random.below(4));
  plan.most_elements = 1ull << (4 + random.below(11));
  plan.bounded = random.chance(0.5);
  plan.bound = Duration(static_cast<std::int64_t>(1'000'000 + random.below(20'000'000)));
  if (random.chance(0.7)) plan.skew = Duration(static_cast<std::int64_t>(random.below(5'000'000)));
  if (random.chance(0.6)) plan.faults.loss = static_cast<double>(random.below(300)) / 1000;
  if (random.chance(0.4)) plan.faults.duplicate = static_cast<double>(random.below(500)) / 1000;
  if (random.chance(0.4)) plan.faults.reorder = static_cast<double>(random.below(500)) / 1000;
  if (random.chance(0.3)) plan.faults.corrupt = static_cast<double>(random.below(100)) / 1000;
  if (random.chance(0.3)) plan.faults.truncate = static_cast<double>(random.below(100)) / 1000;
  plan.faults.reorder_delay = Duration(static_cast<std::int64_t>(random.below(3'000'000)));
  plan.frames = static_cast<std::uint32_t>(1 + random.below(64));
  plan.receive_bytes = 1ull << (14 + random.below(8));
  plan.gathers = random.chance(0.5);
  return plan;
}

std::string describe(const SimulationPlan& plan) {
  return fmt::format(
      "seed {}: {} ranks, {} tags x {} calls of up to {} elements, slots of {} B, {}, skew {} us, "
      "loss {}, duplicate {}, reorder {} within {} us, corrupt {}, truncate {}, {} frames, "
      "{} B of receive buffer, {}",
      plan.seed, plan.ranks, plan.tags, plan.calls_per_tag, plan.most_elements, plan.slot_bytes,
      plan.bounded ? fmt::format("bounded by 2 x {} us", plan.bound / 1us) : "exact",
      plan.skew / 1us, plan.faults.loss, plan.faults.duplicate, plan.faults.reorder,
      plan.faults.reorder_delay / 1us, plan.faults.corrupt, plan.faults.truncate, plan.frames,
      plan.receive_bytes, plan.gathers ? "gathering port" : "copying port");
}

}  // namespace tarpon
