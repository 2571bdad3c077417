// The words of a collective call: element types, reduction functions, algorithm, mode.
//
// Plain values. Their numbers go over the wire (collectives/engine/call/signature.h) and never
// change. When one is added, the tables of names in types.cc, decode() in signature.cc, the tables
// of the reduction kernels and tools/reference/reference.h need it too.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tarpon {

enum class DataType : std::uint8_t {
  float32 = 0,
  float64 = 1,
  int32 = 2,
  int64 = 3,
  float16 = 4,   // IEEE binary16
  bfloat16 = 5,  // the upper half of a float32
  int8 = 6,
  uint8 = 7,
  int16 = 8,
  uint16 = 9,
  uint32 = 10,
  uint64 = 11,
};
inline constexpr std::size_t kDataTypes = 12;
inline constexpr DataType kLastDataType = DataType::uint64;

enum class ReduceOp : std::uint8_t {
  sum = 0,
  avg = 1,  // integers: the sum modulo 2^bits, divided by the ranks, truncated toward zero
  min = 2,  // of floats NaN where a contribution is; -0 is below +0; max too
  max = 3,
  prod = 4,
  band = 5,  // integers only, like bor and bxor
  bor = 6,
  bxor = 7,
  custom = 8,  // AllreduceArguments::custom; exact mode
};
inline constexpr std::size_t kReduceOps = 9;
inline constexpr ReduceOp kLastReduceOp = ReduceOp::custom;

/// What a call does (collectives/collective.h).
enum class Collective : std::uint8_t {
  allreduce = 0,
  reduce_scatter = 1,
  all_gather = 2,
  broadcast = 3,
  reduce = 4,
  gather = 5,
  scatter = 6,
  all_to_all = 7,
  send = 8,     // both ranks of a message say `send` on the wire
  receive = 9,  // not on the wire
};
inline constexpr std::size_t kCollectives = 10;
inline constexpr Collective kLastCollective = Collective::receive;

/// Whether it adds up: then the type needs the function.
constexpr bool reduces(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}

/// Whether it moves data from one rank to another, and the other ranks take no part.
constexpr bool is_message(Collective collective) {
  return collective == Collective::send || collective == Collective::receive;
}

/// Whether its buffers have a part for each rank.
constexpr bool has_parts(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_gather ||
         collective == Collective::gather || collective == Collective::scatter ||
         collective == Collective::all_to_all;
}

/// Whether one rank differs from the others.
constexpr bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

/// How an exact AllReduce is made; bounded ones run tar. The algorithms other than tar are in
/// collectives/engine/schedules/schedule.h.
enum class Algorithm : std::uint8_t {
  automatic = 0,  // by size and ranks: choose_algorithm()
  tar = 1,
  circulant = 2,
  one_shot = 3,
  ring = 4,
  recursive_doubling = 5,
  two_level_tar = 6,
  late_rank = 7,
  hosts =
      8,  // in each host through its memory, then over the hosts (engine/hosts/hosted_allreduce.h)
};
inline constexpr Algorithm kLastAlgorithm = Algorithm::hosts;

/// exact: repaired until complete, the same bits on all ranks; collectives/communicator.h says when
/// they are the same on every run. bounded: ends by its bound with what has arrived; slots are
/// added on arrival.
enum class Mode : std::uint8_t { exact = 0, bounded = 1 };

/// none: elements are sent as they are. hadamard: coefficients of blocks are sent
/// (codec/hadamard.h).
enum class Codec : std::uint8_t { none = 0, hadamard = 1 };

constexpr std::size_t element_bytes(DataType type) {
  switch (type) {
    case DataType::int8:
    case DataType::uint8:
      return 1;
    case DataType::float16:
    case DataType::bfloat16:
    case DataType::int16:
    case DataType::uint16:
      return 2;
    case DataType::float32:
    case DataType::int32:
    case DataType::uint32:
      return 4;
    case DataType::float64:
    case DataType::int64:
    case DataType::uint64:
      break;
  }
  return 8;
}

/// float16 and bfloat16. Their sums, averages and products are computed in float32 and rounded once
/// per result.
constexpr bool is_half(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16;
}

constexpr bool is_integer(DataType type) {
  return type != DataType::float32 && type != DataType::float64 && !is_half(type);
}

constexpr bool is_bitwise(ReduceOp function) {
  return function == ReduceOp::band || function == ReduceOp::bor || function == ReduceOp::bxor;
}

/// Whether `function` exists for elements of `type`: bitwise functions need integers.
constexpr bool is_defined(DataType type, ReduceOp function) {
  return is_integer(type) || !is_bitwise(function);
}

/// Names as nccl-tests prints them: float, double, half, bfloat16, int8, ...; sum, avg, min, max,
/// prod, and band, bor, bxor, custom.
std::string_view name(DataType type);
std::string_view name(ReduceOp function);
std::string_view name(Collective collective);
std::string_view name(Algorithm algorithm);
std::string_view name(Mode mode);
std::string_view name(Codec codec);

/// The inverse of name(); data types also as float16, float32 and float64. Nothing for any other
/// text.
std::optional<DataType> parse_data_type(std::string_view text);
std::optional<ReduceOp> parse_reduce_op(std::string_view text);
std::optional<Mode> parse_mode(std::string_view text);
std::optional<Algorithm> parse_algorithm(std::string_view text);

}  // namespace tarpon
