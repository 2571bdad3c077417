#include "collectives/engine/refusal.h"

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <cstring>

namespace tarpon {
namespace {

/// Whether `value` is at most `last`. It may be out of range: C callers and bindings pass numbers.
template <typename Enum>
bool is_one_of(Enum value, Enum last) {
  return static_cast<unsigned>(value) <= static_cast<unsigned>(last);
}

std::optional<std::string> unknown_value(const AllreduceArguments& arguments) {
  const auto text = [](const char* what, auto value) {
    return fmt::format("allreduce: {} {} is unknown", what, static_cast<unsigned>(value));
  };
  if (!is_one_of(arguments.type, kLastDataType)) return text("element type", arguments.type);
  if (!is_one_of(arguments.function, kLastReduceOp)) return text("function", arguments.function);
  if (!is_one_of(arguments.mode, Mode::bounded)) return text("mode", arguments.mode);
  if (!is_one_of(arguments.algorithm, kLastAlgorithm)) {
    return text("algorithm", arguments.algorithm);
  }
  if (!is_one_of(arguments.missing, MissingFill::local)) {
    return text("rule for missing values", arguments.missing);
  }
  if (!is_one_of(arguments.bound_rule, BoundRule::optireduce)) {
    return text("rule for bounds", arguments.bound_rule);
  }
  return std::nullopt;
}

std::optional<Refusal> refusal_of_late_rank(const AllreduceArguments& arguments,
                                            std::uint32_t world) {
  const auto late = static_cast<std::uint32_t>(arguments.late_rank);
  std::string text;
  if (arguments.algorithm != Algorithm::late_rank) {
    if (late == 0) return std::nullopt;
    text = fmt::format("late rank {} is of algorithm {}, not {}; give 0", late,
                       name(Algorithm::late_rank), name(arguments.algorithm));
  } else if (!std::has_single_bit(world)) {
    text = fmt::format(
        "algorithm {} needs 2, 4, 8, ... ranks, not {}; give algorithm {} and shares "
        "with 0 for the late rank",
        name(arguments.algorithm), world, name(Algorithm::tar));
  } else if (late >= world) {
    text = fmt::format("late rank {} of {} ranks; give one below that", late, world);
  } else {
    return std::nullopt;
  }
  return Refusal{AbortReason::argument, "allreduce: " + text};
}

std::optional<Refusal> refusal_of_shares(const AllreduceArguments& arguments, std::uint32_t world) {
  const Shares& shares = arguments.shares;
  if (shares.even()) return std::nullopt;
  std::string text;
  if (!shares.valid()) {
    text = fmt::format("shares need 1 to {} weights, none negative, with a finite sum above 0",
                       Shares::kMostRanks);
  } else if (shares.ranks() != world) {
    text = fmt::format("{} shares for a job of {} ranks; give one for each rank", shares.ranks(),
                       world);
  } else if (arguments.algorithm != Algorithm::tar && arguments.algorithm != Algorithm::automatic) {
    text = fmt::format("shares are of algorithm {}, not {}; give none", name(Algorithm::tar),
                       name(arguments.algorithm));
  } else {
    return std::nullopt;
  }
  return Refusal{AbortReason::argument, "allreduce: " + text};
}

std::optional<Refusal> refusal_of_hosts(const AllreduceArguments& arguments,
                                        const RefusalRules& rules) {
  if (arguments.algorithm != Algorithm::hosts || may_run_bounded(arguments)) return std::nullopt;
  if (rules.world == 1 || rules.shares_hosts) return std::nullopt;
  return Refusal{
      AbortReason::argument,
      "allreduce: algorithm hosts needs ranks that share the memory of their hosts; give "
      "algorithm auto"};
}

std::optional<Refusal> refusal_of_times(const AllreduceArguments& arguments,
                                        std::string_view what) {
  if (arguments.deadline <= Duration::zero()) {
    return Refusal{AbortReason::deadline,
                   fmt::format("{}: the deadline must be positive, not {} us", what,
                               arguments.deadline / 1us)};
  }
  if (arguments.bound && *arguments.bound <= Duration::zero()) {
    return Refusal{AbortReason::argument, fmt::format("{}: the bound must be positive, not {} us",
                                                      what, *arguments.bound / 1us)};
  }
  if (arguments.bound && *arguments.bound > arguments.deadline) {
    return Refusal{AbortReason::argument,
                   fmt::format("{}: the bound of {} s is above the deadline of {} s", what,
                               std::chrono::duration<double>(*arguments.bound).count(),
                               std::chrono::duration<double>(arguments.deadline).count())};
  }
  return std::nullopt;
}

/// Slots are numbered with 32 bits, the highest numbers have meanings of their own.
std::uint64_t most_elements(const AllreduceArguments& arguments, const RefusalRules& rules) {
  return std::uint64_t{0xfffffff0} * rules.slot_bytes / element_bytes(arguments.type);
}

/// Of a collective other than AllReduce, whose arguments CallArguments has looked at.
std::optional<Refusal> refusal_of_collective(const CallArguments& arguments,
                                             const RefusalRules& rules) {
  const std::string_view what =
      arguments.parts ? name(arguments.parts->collective) : "a collective";
  if (!arguments.refusal.empty()) {
    return Refusal{AbortReason::exception, fmt::format("{}: {}", what, arguments.refusal)};
  }
  if (!arguments.wrong.empty()) return Refusal{AbortReason::argument, arguments.wrong};
  if (auto wrong = refusal_of_times(arguments, what)) return wrong;
  const std::uint64_t most = most_elements(arguments, rules);
  if (arguments.count <= most) return std::nullopt;
  return Refusal{
      AbortReason::argument,
      fmt::format("{} of {} elements: at most {} in one call with {} bytes a slot; split "
                  "it",
                  what, arguments.count, most, rules.slot_bytes)};
}

/// Learnt shares follow measurements, and the order of additions follows the shares.
std::optional<Refusal> refusal_of_learning(const AllreduceArguments& arguments,
                                           const RefusalRules& rules) {
  if (!arguments.learn_shares || rules.rotation) return std::nullopt;
  return Refusal{AbortReason::argument,
                 "allreduce: learn_shares changes the order of addition, which is fixed "
                 "(TARPON_ORDER); leave one out"};
}

}  // namespace

std::optional<Refusal> refusal_of(const CallArguments& arguments, const RefusalRules& rules) {
  if (arguments.parts || !arguments.wrong.empty()) return refusal_of_collective(arguments, rules);
  if (!arguments.refusal.empty()) {
    return Refusal{AbortReason::exception, "allreduce: " + arguments.refusal};
  }
  if (auto unknown = unknown_value(arguments)) return Refusal{AbortReason::argument, *unknown};
  if (!is_defined(arguments.type, arguments.function)) {
    return Refusal{AbortReason::argument,
                   fmt::format("allreduce: {} needs integers; the elements are {}",
                               name(arguments.function), name(arguments.type))};
  }
  if (arguments.function == ReduceOp::custom && arguments.custom.combine == nullptr) {
    return Refusal{AbortReason::argument,
                   "allreduce: function custom needs a combine function: custom.combine is null "
                   "(custom_combine of tarpon_arguments)"};
  }
  if (arguments.group_size != 0 && arguments.algorithm != Algorithm::two_level_tar) {
    return Refusal{AbortReason::argument,
                   fmt::format("allreduce: groups of {} ranks are of algorithm {}, not {}; give 0",
                               arguments.group_size, name(Algorithm::two_level_tar),
                               name(arguments.algorithm))};
  }
  const std::uint32_t world = rules.world;
  if (arguments.group_size != 0 && world % arguments.group_size != 0) {
    return Refusal{AbortReason::argument,
                   fmt::format("allreduce: groups of {} ranks do not divide {} ranks; give a "
                               "divisor, or 0",
                               arguments.group_size, world)};
  }
  if (auto wrong = refusal_of_late_rank(arguments, world)) return wrong;
  if (auto wrong = refusal_of_shares(arguments, world)) return wrong;
  if (auto wrong = refusal_of_learning(arguments, rules)) return wrong;
  if (auto wrong = refusal_of_hosts(arguments, rules)) return wrong;
  if (auto wrong = refusal_of_times(arguments, "allreduce")) return wrong;
  if (arguments.count == 0) return std::nullopt;
  const char* const absent = arguments.input == nullptr ? "input" : "output";
  if (arguments.input == nullptr || arguments.output == nullptr) {
    return Refusal{
        AbortReason::argument,
        fmt::format("allreduce of {} elements: the {} buffer is null", arguments.count, absent)};
  }
  const std::uint64_t element = element_bytes(arguments.type);
  const std::uint64_t most = most_elements(arguments, rules);
  if (arguments.count > most) {
    return Refusal{AbortReason::argument,
                   fmt::format("allreduce of {} elements: at most {} in one call with {} bytes a "
                               "slot; split it",
                               arguments.count, most, rules.slot_bytes)};
  }
  const std::uint64_t bytes = arguments.count * element;
  if (arguments.input != arguments.output &&
      overlap(arguments.input, bytes, arguments.output, bytes)) {
    return Refusal{AbortReason::argument,
                   fmt::format("allreduce of {} elements: input and output overlap; give the same "
                               "buffer for both, or two apart",
                               arguments.count)};
  }
  return std::nullopt;
}

Refusal no_memory() {
  return {AbortReason::memory, "allreduce: no memory for the buffers of the call"};
}

Refusal exception_inside(const std::exception& error) {
  return {AbortReason::exception, fmt::format("allreduce: {}", error.what())};
}

void run_alone(PendingCall& call, const std::optional<Refusal>& refused) {
  const CallArguments& arguments = call.arguments;
  Report& report = call.report;
  report.peers.resize(1);
  if (refused) {
    report.status = Status::aborted;
    report.abort_reason = refused->reason;
    report.blamed = {0};
    report.detail = refused->detail;
  } else {
    const std::byte* const from = arguments.bucket_input(0);
    std::byte* const to = arguments.bucket_output(0);
    if (to != from && arguments.count > 0) std::memcpy(to, from, bucket_bytes(arguments));
    report.stage = CallStage::result;
    report.peers[0].contributors = 1;
  }
  call.end();
}

}  // namespace tarpon
