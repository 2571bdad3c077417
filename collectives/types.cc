// Names of types, functions, modes and orders, and back.
#include "collectives/types.h"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace tarpon {
namespace {

constexpr std::array<std::string_view, kDataTypes> kDataTypeNames = {
    "float", "double", "int32", "int64",  "half",   "bfloat16",
    "int8",  "uint8",  "int16", "uint16", "uint32", "uint64"};

constexpr std::array<std::string_view, kReduceOps> kReduceOpNames = {
    "sum", "avg", "min", "max", "prod", "band", "bor", "bxor", "custom"};

constexpr std::array<std::string_view, kCollectives> kCollectiveNames = {
    "allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
    "gather",    "scatter",        "all_to_all", "send",      "receive"};

/// The value whose number is the index of its name.
template <typename Value, std::size_t kCount>
std::optional<Value> parse(std::string_view text,
                           const std::array<std::string_view, kCount>& names) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return std::nullopt;
  return static_cast<Value>(found - names.begin());
}

template <typename Value>
std::optional<Value> parse(std::string_view text, std::initializer_list<Value> values) {
  for (const Value value : values) {
    if (name(value) == text) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name(DataType type) {
  const auto number = static_cast<std::size_t>(type);
  return number < kDataTypes ? kDataTypeNames[number] : "unknown";
}

std::string_view name(ReduceOp function) {
  const auto number = static_cast<std::size_t>(function);
  return number < kReduceOps ? kReduceOpNames[number] : "unknown";
}

std::string_view name(Collective collective) {
  const auto number = static_cast<std::size_t>(collective);
  return number < kCollectives ? kCollectiveNames[number] : "unknown";
}

std::string_view name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic:
      return "auto";
    case Algorithm::tar:
      return "tar";
    case Algorithm::circulant:
      return "circulant";
    case Algorithm::one_shot:
      return "one-shot";
    case Algorithm::ring:
      return "ring";
    case Algorithm::recursive_doubling:
      return "recursive-doubling";
    case Algorithm::two_level_tar:
      return "2d-tar";
    case Algorithm::late_rank:
      return "late-rank";
    case Algorithm::hosts:
      return "hosts";
  }
  return "unknown";
}

std::string_view name(Mode mode) {
  switch (mode) {
    case Mode::exact:
      return "exact";
    case Mode::bounded:
      return "bounded";
  }
  return "unknown";
}

std::string_view name(Codec codec) {
  switch (codec) {
    case Codec::none:
      return "none";
    case Codec::hadamard:
      return "hadamard";
  }
  return "unknown";
}

std::optional<DataType> parse_data_type(std::string_view text) {
  if (text == "float16") return DataType::float16;
  if (text == "float32") return DataType::float32;
  if (text == "float64") return DataType::float64;
  return parse<DataType>(text, kDataTypeNames);
}

std::optional<ReduceOp> parse_reduce_op(std::string_view text) {
  return parse<ReduceOp>(text, kReduceOpNames);
}

std::optional<Mode> parse_mode(std::string_view text) {
  return parse(text, {Mode::exact, Mode::bounded});
}

std::optional<Algorithm> parse_algorithm(std::string_view text) {
  return parse(text, {Algorithm::automatic, Algorithm::tar, Algorithm::circulant,
                      Algorithm::one_shot, Algorithm::ring, Algorithm::recursive_doubling,
                      Algorithm::two_level_tar, Algorithm::late_rank, Algorithm::hosts});
}

}  // namespace tarpon
