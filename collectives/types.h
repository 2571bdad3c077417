// The words of a collective call: element types, reduction functions, algorithm, mode, order.
//
// Plain values. Their numbers travel on the wire (collectives/signature.h) and never change; when
// one is added, the names in types.cc, decode() in signature.cc and the tables of the reduction
// kernels follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tarpon {

enum class DataType : std::uint8_t { float32 = 0, float64 = 1, int32 = 2, int64 = 3 };
inline constexpr std::size_t kDataTypes = 4;
inline constexpr DataType kLastDataType = DataType::int64;

enum class ReduceOp : std::uint8_t { sum = 0, avg = 1, min = 2, max = 3, prod = 4 };
inline constexpr std::size_t kReduceOps = 5;
inline constexpr ReduceOp kLastReduceOp = ReduceOp::prod;

enum class Algorithm : std::uint8_t { tar = 1 };

/// exact: repaired until complete. bounded: ends by its bound with what has arrived.
enum class Mode : std::uint8_t { exact = 0, bounded = 1 };

/// fixed: owner, successor, ..., predecessor: the same bits on every run. any: on arrival.
enum class AdditionOrder : std::uint8_t { fixed = 0, any = 1 };

/// none: elements travel as they are. hadamard: coefficients of blocks do (codec/hadamard.h).
enum class Codec : std::uint8_t { none = 0, hadamard = 1 };

constexpr std::size_t element_bytes(DataType type) {
  return type == DataType::float32 || type == DataType::int32 ? 4 : 8;
}

constexpr bool is_integer(DataType type) {
  return type == DataType::int32 || type == DataType::int64;
}

/// Names as nccl-tests prints them: float, double, int32, int64; sum, avg, min, max, prod.
std::string_view name(DataType type);
std::string_view name(ReduceOp function);
std::string_view name(Algorithm algorithm);
std::string_view name(Mode mode);
std::string_view name(AdditionOrder order);
std::string_view name(Codec codec);

/// The inverse of name(); data types also as float32 and float64. Nothing for any other text.
std::optional<DataType> parse_data_type(std::string_view text);
std::optional<ReduceOp> parse_reduce_op(std::string_view text);
std::optional<Mode> parse_mode(std::string_view text);
std::optional<AdditionOrder> parse_addition_order(std::string_view text);

}  // namespace tarpon
