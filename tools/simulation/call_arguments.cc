// What ranks ask for in a simulated call.
#include <algorithm>

#include "tools/simulation/simulated_call.h"

namespace tarpon {
namespace {

constexpr Duration kLiveBound = 200ms;
// A message arrives two slots at a time in a buffer of a few packets.
constexpr Duration kStarvedLiveBound = 1s;

/// Another type whose elements have the same number of bytes.
DataType other_type(DataType type) {
  const auto number = static_cast<unsigned>(type);
  if (type == DataType::uint32 || type == DataType::uint64) {
    return static_cast<DataType>(number - 8);  // int32, int64
  }
  return static_cast<DataType>(number < 4 ? number ^ 2 : number ^ 1);
}

void make_different(const SimulationPlan& plan, const SimulatedCall& call,
                    AllreduceArguments& arguments) {
  switch (plan.difference) {
    case Difference::count:
      if (call.count == 0) break;
      --arguments.count;
      return;
    case Difference::type:
      arguments.type = other_type(call.type);
      if (is_defined(arguments.type, arguments.function)) return;
      arguments.type = call.type;
      break;
    case Difference::mode:
      if (!call.bounded) break;
      arguments.mode = Mode::exact;
      return;
    case Difference::function:
    case Difference::kinds:
      break;
  }
  arguments.function = call.function == ReduceOp::sum ? ReduceOp::avg : ReduceOp::sum;
}

void make_wrong(const SimulationPlan& plan, AllreduceArguments& arguments) {
  const std::uint64_t bytes = arguments.count * element_bytes(arguments.type);
  switch (plan.wrong_argument) {
    case WrongArgument::bound:
      arguments.bound = Duration(-1);
      return;
    case WrongArgument::function:
      arguments.function = static_cast<ReduceOp>(kReduceOps);
      return;
    case WrongArgument::count:
      arguments.count = std::uint64_t{1} << 60;
      return;
    case WrongArgument::input:
      if (arguments.count == 0) break;
      arguments.input = nullptr;
      return;
    case WrongArgument::overlap:
      if (arguments.count == 0) break;
      arguments.input = static_cast<const std::byte*>(arguments.output) + bytes / 2;
      return;
    case WrongArgument::deadline:
    case WrongArgument::kinds:
      break;
  }
  arguments.deadline = {};
}

}  // namespace

Duration bound_of(const SimulationPlan& plan, const SimulatedCall& call) {
  const bool starved = has(plan.on, FaultKind::starved_buffers);
  return call.live ? std::max(plan.bound, starved ? kStarvedLiveBound : kLiveBound) : plan.bound;
}

AllreduceArguments exact_arguments(const SimulatedCall& call) {
  AllreduceArguments arguments;
  arguments.count = call.count;
  arguments.type = call.type;
  arguments.function = call.function;
  arguments.algorithm = call.algorithm;
  arguments.group_size = call.group_size;
  arguments.late_rank = call.late_rank;
  arguments.shares = call.shares;
  arguments.learn_shares = call.learns;
  return arguments;
}

CallArguments collective_arguments(const SimulatedCall& call, std::uint32_t ranks, Rank rank,
                                   const std::byte* input, std::byte* output) {
  const CollectiveParts& parts = call.parts[rank];
  const std::size_t width = element_bytes(call.type);
  CollectiveArguments arguments;
  arguments.collective = parts.collective;
  arguments.tag = call.tag;
  if (const std::optional<PairTag> pair = pair_tag(call.tag)) {
    arguments.peer = rank == pair->sender ? pair->receiver : pair->sender;
    arguments.tag = pair->tag;
  } else {
    arguments.root = parts.root;
  }
  arguments.input = input + parts.input(rank).first * width;
  arguments.output = output + parts.output(rank).first * width;
  if (parts.parts.empty()) {
    arguments.count = call.count;
  } else if (parts.collective == Collective::all_to_all && !parts.by_pair) {
    arguments.count = parts.parts[0].count;
  } else {
    const auto counts = [](const std::vector<Range>& of) {
      std::vector<std::uint64_t> counts;
      for (const Range& part : of) counts.push_back(part.count);
      return counts;
    };
    arguments.counts = counts(parts.by_pair ? parts.sent : parts.parts);
    if (parts.by_pair) arguments.output_counts = counts(parts.parts);
  }
  arguments.type = call.type;
  arguments.function = call.function;
  if (call.bounded) arguments.mode = Mode::bounded;
  arguments.deadline = call.deadline;
  CallArguments result(arguments, ranks, rank);
  result.algorithm = call.algorithm;
  return result;
}

namespace {

/// As arguments_of().
CallArguments arguments_of_collective(const SimulationPlan& plan, const SimulatedCall& call,
                                      Rank rank) {
  std::byte* const output = const_cast<std::byte*>(call.outputs[rank].data());
  const bool in_place = call.in_place && !call.parts[rank].by_pair;
  const std::byte* const input = in_place ? output : call.inputs[rank].data();
  CallArguments arguments = collective_arguments(call, plan.ranks, rank, input, output);
  arguments.bound_rule = call.bound_rule;
  if (call.bounded && (call.live || plan.limited)) arguments.bound = bound_of(plan, call);
  if (rank != plan.victim) return arguments;
  if (call.refused) {
    if (plan.wrong_argument == WrongArgument::deadline) {
      arguments.deadline = {};
    } else {
      arguments.wrong = "wrong, by the plan";
    }
  }
  if (call.mismatched) {
    auto other = std::make_shared<CollectiveParts>(call.parts[rank]);
    const bool reduces = other->collective == Collective::reduce;
    other->collective = reduces ? Collective::broadcast : Collective::reduce;
    other->parts.clear();
    other->by_pair = false;
    arguments.mode = Mode::exact;
    arguments.input = input;
    arguments.output = output;
    arguments.parts = std::move(other);
  }
  return arguments;
}

}  // namespace

CallArguments arguments_of(const SimulationPlan& plan, SimulatedCall& call, Rank rank) {
  if (!call.parts.empty()) return arguments_of_collective(plan, call, rank);
  AllreduceArguments arguments = exact_arguments(call);
  arguments.output = call.outputs[rank].data();
  arguments.input = call.in_place ? call.outputs[rank].data() : call.inputs[rank].data();
  arguments.tag = call.tag;
  arguments.mode = call.bounded || call.calibrates() ? Mode::bounded : Mode::exact;
  arguments.bound_rule = call.bound_rule;
  arguments.deadline = call.deadline;
  arguments.missing = call.missing;
  if (call.bounded && (call.live || plan.limited)) arguments.bound = bound_of(plan, call);
  if (rank != plan.victim) return arguments;
  arguments.learn_shares = call.victim_learns;
  arguments.shares = call.of_victim.value_or(call.shares);
  if (call.refused) make_wrong(plan, arguments);
  if (!call.mismatched || call.of_victim || call.learns != call.victim_learns) return arguments;
  make_different(plan, call, arguments);
  return arguments;
}

}  // namespace tarpon
