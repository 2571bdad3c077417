// Makes call arguments of collective arguments, and checks them.
#include "collectives/engine/call/call_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "transport/pair_tag.h"

namespace tarpon {
namespace {

/// The error in the counts of `call`; empty if there is none.
std::string wrong_counts(const CollectiveArguments& call, std::uint32_t world, Rank rank) {
  const bool exchanges = call.collective == Collective::all_to_all;
  if (!exchanges && !call.output_counts.empty()) return "it takes no output_counts";
  if (call.counts.empty() && call.output_counts.empty()) return "";
  if (!has_parts(call.collective)) return "it takes no counts";
  if (call.counts.size() != world) {
    return fmt::format("{} counts for {} ranks: give one for each rank", call.counts.size(), world);
  }
  if (exchanges && call.output_counts.size() != world) {
    return fmt::format("{} output_counts for {} ranks: give one for each rank",
                       call.output_counts.size(), world);
  }
  if (call.count != 0) {
    return fmt::format("count {} beside counts: give 0", call.count);
  }
  if (exchanges && call.counts[rank] != call.output_counts[rank]) {
    return fmt::format("rank {} keeps {} elements for itself, and takes {}: give one number", rank,
                       call.counts[rank], call.output_counts[rank]);
  }
  return "";
}

/// The error in the shape of `call`; empty if there is none. CollectiveParts::of() needs a shape
/// without error.
std::string wrong_shape(const CollectiveArguments& call, std::uint32_t world, Rank rank) {
  if (call.collective == Collective::allreduce || call.collective > kLastCollective) {
    return fmt::format(
        "collective {}: give one of collectives/collective.h; AllReduce has a call "
        "of its own",
        static_cast<unsigned>(call.collective));
  }
  if (call.type > kLastDataType) {
    return fmt::format("element type {} is unknown", static_cast<unsigned>(call.type));
  }
  if (call.function > kLastReduceOp) {
    return fmt::format("function {} is unknown", static_cast<unsigned>(call.function));
  }
  if (has_root(call.collective) ? call.root >= world : call.root != 0) {
    return has_root(call.collective)
               ? fmt::format("root {} of {} ranks: give one below that", call.root, world)
               : fmt::format("root {}: it has no root; give 0", call.root);
  }
  if (call.mode > Mode::bounded) {
    return fmt::format("mode {} is unknown", static_cast<unsigned>(call.mode));
  }
  const bool has_bounded_form =
      call.collective == Collective::reduce_scatter || call.collective == Collective::all_gather;
  if (call.mode == Mode::bounded && !has_bounded_form) {
    return "it runs exact alone; give mode exact";
  }
  return wrong_counts(call, world, rank);
}

/// The error in the function or the buffers of `call`; empty if there is none.
std::string wrong_buffers(const CollectiveArguments& call, const CollectiveParts& parts,
                          Rank rank) {
  if (reduces(call.collective)) {
    if (!is_defined(call.type, call.function)) {
      return fmt::format("{} needs integers; the elements are {}", name(call.function),
                         name(call.type));
    }
    if (call.function == ReduceOp::custom && call.custom.combine == nullptr) {
      return "function custom needs a combine function: custom.combine is null";
    }
  }
  const std::uint64_t width = element_bytes(call.type);
  const Range input = parts.input(rank).times(width), output = parts.output(rank).times(width);
  if (input.count > 0 && call.input == nullptr) return "the input buffer is null";
  if (output.count > 0 && call.output == nullptr) return "the output buffer is null";
  if (input.count == 0 || output.count == 0) return "";
  const auto* const from = static_cast<const std::byte*>(call.input);
  const auto* const to = static_cast<const std::byte*>(call.output);
  const bool alike = parts.sent.empty() || parts.sent == parts.parts;
  const bool in_place = alike && from + output.first == to + input.first;
  if (!in_place && overlap(from, input.count, to, output.count)) {
    return "input and output overlap: put them apart, or in place (collectives/collective.h)";
  }
  return "";
}

/// Whether the sizes of all parts together fit a message.
bool too_many(const CollectiveArguments& call, std::uint32_t world) {
  constexpr double kMost = 1ull << 46;  // bytes: 2^32 slots of 16 KiB
  const auto elements = [&](const std::vector<std::uint64_t>& counts) {
    return std::accumulate(
        counts.begin(), counts.end(), static_cast<double>(call.count) * world,
        [](double sum, std::uint64_t part) { return sum + static_cast<double>(part); });
  };
  return std::max(elements(call.counts), elements(call.output_counts)) *
             static_cast<double>(element_bytes(call.type)) >
         kMost;
}

}  // namespace

bool may_run_bounded(const CallArguments& arguments) {
  if (arguments.parts && arguments.parts->collective == Collective::all_gather) {
    return arguments.mode == Mode::bounded;
  }
  return may_run_bounded(static_cast<const AllreduceArguments&>(arguments));
}

bool overlap(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a);
  const auto second = reinterpret_cast<std::uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

std::uint32_t operation_tag(const CollectiveArguments& call, Rank rank) {
  if (!is_message(call.collective)) return call.tag;
  const auto tag = static_cast<std::uint16_t>(call.tag);
  return call.collective == Collective::send
             ? encode(PairTag{.sender = rank, .receiver = call.peer, .tag = tag})
             : encode(PairTag{.sender = call.peer, .receiver = rank, .tag = tag});
}

CallArguments::CallArguments(const CollectiveArguments& call, std::uint32_t world, Rank rank) {
  input = call.input;
  output = call.output;
  type = call.type;
  tag = operation_tag(call, rank);
  algorithm = Algorithm::tar;
  mode = call.mode;
  bound = call.bound;
  deadline = call.deadline;
  refusal = call.refusal;
  wrong = wrong_shape(call, world, rank);
  if (wrong.empty() && too_many(call, world)) wrong = "more elements than a call takes: split it";
  if (wrong.empty()) {
    auto shape = CollectiveParts::of(call, world, rank);
    count = shape.count;
    if (reduces(call.collective)) {
      function = call.function;
      custom = call.custom;
    }
    wrong = wrong_buffers(call, shape, rank);
    parts = std::make_shared<const CollectiveParts>(std::move(shape));
  }
  if (!wrong.empty()) wrong = fmt::format("{}: {}", name(call.collective), wrong);
}

}  // namespace tarpon
