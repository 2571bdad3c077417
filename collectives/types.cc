// Names of types, functions, modes and orders, and back.
#include "collectives/types.h"

#include <initializer_list>

namespace tarpon {
namespace {

template <typename Value>
std::optional<Value> parse(std::string_view text, std::initializer_list<Value> values) {
  for (const Value value : values) {
    if (name(value) == text) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name(DataType type) {
  switch (type) {
    case DataType::float32:
      return "float";
    case DataType::float64:
      return "double";
    case DataType::int32:
      return "int32";
    case DataType::int64:
      return "int64";
  }
  return "unknown";
}

std::string_view name(ReduceOp function) {
  switch (function) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::prod:
      return "prod";
  }
  return "unknown";
}

std::string_view name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::tar:
      return "tar";
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

std::string_view name(AdditionOrder order) {
  switch (order) {
    case AdditionOrder::fixed:
      return "fixed";
    case AdditionOrder::any:
      return "any";
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
  if (text == "float32") return DataType::float32;
  if (text == "float64") return DataType::float64;
  return parse(text, {DataType::float32, DataType::float64, DataType::int32, DataType::int64});
}

std::optional<ReduceOp> parse_reduce_op(std::string_view text) {
  return parse(text, {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::prod});
}

std::optional<Mode> parse_mode(std::string_view text) {
  return parse(text, {Mode::exact, Mode::bounded});
}

std::optional<AdditionOrder> parse_addition_order(std::string_view text) {
  return parse(text, {AdditionOrder::fixed, AdditionOrder::any});
}

}  // namespace tarpon
