// Encoding of an operation's signature, and the difference of two in words.
#include "collectives/engine/call/signature.h"

#include <fmt/format.h>

namespace tarpon {
namespace {

constexpr std::size_t kTypeAt = 0;
constexpr std::size_t kFunctionAt = 1;
constexpr std::size_t kAlgorithmAt = 2;
constexpr std::size_t kModeAt = 3;
constexpr std::size_t kSlotBytesAt = 4;
constexpr std::size_t kSharesAt = 6;
constexpr std::size_t kCountAt = 8;
constexpr std::size_t kEpochAt = 16;
constexpr std::size_t kParameterAt = 18;
constexpr std::size_t kCodecAt = 19;
constexpr std::size_t kCustomAt = 20;

template <typename Unsigned>
void put(SignatureBytes& bytes, std::size_t at, Unsigned value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

template <typename Unsigned>
Unsigned get(std::span<const std::uint8_t, TARPON_SIGNATURE_BYTES> bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i)
    value |= std::uint64_t{bytes[at + i]} << (8 * i);
  return static_cast<Unsigned>(value);
}

bool is_parameter(Collective collective, Algorithm algorithm, std::uint8_t value) {
  if (collective != Collective::allreduce) {
    const bool names_rank = has_root(collective) || is_message(collective);
    const bool known = algorithm == Algorithm::tar || algorithm == Algorithm::hosts;
    return known && (names_rank || value == 0);
  }
  if (algorithm == Algorithm::tar) return value <= 1;
  const bool needs_one = algorithm == Algorithm::two_level_tar || algorithm == Algorithm::late_rank;
  return needs_one == (value != 0);
}

template <typename Value>
std::string differs(std::string_view field, Value a, Value b) {
  return fmt::format("{} {} instead of {}", field, a, b);
}

}  // namespace

OperationSignature common_signature(const CallArguments& arguments) {
  OperationSignature result;
  if (arguments.parts) {
    const Collective collective = arguments.parts->collective;
    result.collective = collective == Collective::receive ? Collective::send : collective;
    result.root = arguments.parts->root;
    const std::uint64_t hash = arguments.parts->hash();
    result.shares = static_cast<std::uint16_t>(hash);
    result.custom = static_cast<std::uint32_t>(hash >> 16);
  }
  result.type = arguments.type;
  result.function = arguments.function;
  result.count = arguments.parts && arguments.parts->by_pair ? 0 : arguments.count;
  if (arguments.function == ReduceOp::custom) result.custom = arguments.custom.id;
  result.learns = arguments.learn_shares && arguments.algorithm == Algorithm::tar;
  return result;
}

SignatureBytes encode(const OperationSignature& signature) {
  SignatureBytes bytes{};
  bytes[kTypeAt] = static_cast<std::uint8_t>(signature.type);
  bytes[kFunctionAt] = static_cast<std::uint8_t>(signature.function);
  bytes[kAlgorithmAt] = static_cast<std::uint8_t>(signature.algorithm);
  bytes[kModeAt] = static_cast<std::uint8_t>(static_cast<unsigned>(signature.mode) |
                                             static_cast<unsigned>(signature.collective) << 4);
  put(bytes, kSlotBytesAt, signature.slot_bytes);
  put(bytes, kSharesAt, signature.shares);
  put(bytes, kCountAt, signature.count);
  put(bytes, kEpochAt, signature.epoch);
  bytes[kParameterAt] = static_cast<std::uint8_t>(signature.group_size | signature.late_rank |
                                                  signature.root | (signature.learns ? 1 : 0));
  bytes[kCodecAt] = static_cast<std::uint8_t>(signature.codec);
  put(bytes, kCustomAt, signature.custom);
  return bytes;
}

std::optional<OperationSignature> decode(
    std::span<const std::uint8_t, TARPON_SIGNATURE_BYTES> bytes) {
  const std::uint8_t mode = bytes[kModeAt] & 15, collective = bytes[kModeAt] >> 4;
  const bool known =
      bytes[kTypeAt] < kDataTypes && bytes[kFunctionAt] < kReduceOps &&
      bytes[kAlgorithmAt] >= static_cast<std::uint8_t>(Algorithm::tar) &&
      bytes[kAlgorithmAt] <= static_cast<std::uint8_t>(kLastAlgorithm) &&
      mode <= static_cast<std::uint8_t>(Mode::bounded) && collective < kCollectives &&
      is_parameter(static_cast<Collective>(collective), static_cast<Algorithm>(bytes[kAlgorithmAt]),
                   bytes[kParameterAt]) &&
      bytes[kCodecAt] <= static_cast<std::uint8_t>(Codec::hadamard) &&
      (bytes[kFunctionAt] == static_cast<std::uint8_t>(ReduceOp::custom) || collective != 0 ||
       get<std::uint32_t>(bytes, kCustomAt) == 0);
  if (!known) return std::nullopt;
  OperationSignature signature;
  signature.type = static_cast<DataType>(bytes[kTypeAt]);
  signature.function = static_cast<ReduceOp>(bytes[kFunctionAt]);
  signature.algorithm = static_cast<Algorithm>(bytes[kAlgorithmAt]);
  signature.mode = static_cast<Mode>(mode);
  signature.collective = static_cast<Collective>(collective);
  signature.slot_bytes = get<std::uint16_t>(bytes, kSlotBytesAt);
  signature.shares = get<std::uint16_t>(bytes, kSharesAt);
  signature.count = get<std::uint64_t>(bytes, kCountAt);
  signature.epoch = get<std::uint16_t>(bytes, kEpochAt);
  const std::uint8_t parameter = bytes[kParameterAt];
  if (signature.algorithm == Algorithm::two_level_tar) signature.group_size = parameter;
  if (signature.algorithm == Algorithm::late_rank) signature.late_rank = parameter;
  if (signature.collective != Collective::allreduce) {
    signature.root = parameter;
  } else if (signature.algorithm == Algorithm::tar) {
    signature.learns = parameter != 0;
  }
  signature.codec = static_cast<Codec>(bytes[kCodecAt]);
  signature.custom = get<std::uint32_t>(bytes, kCustomAt);
  return signature;
}

std::optional<std::string> first_difference(const OperationSignature& here,
                                            const OperationSignature& there) {
  if (here.collective != there.collective) {
    return differs("collective", name(here.collective), name(there.collective));
  }
  if (here.root != there.root) return differs("root", here.root, there.root);
  if (here.count != there.count) return differs("count", here.count, there.count);
  if (here.type != there.type) return differs("type", name(here.type), name(there.type));
  if (here.function != there.function)
    return differs("function", name(here.function), name(there.function));
  const bool same_parts =
      here.collective == Collective::allreduce || here.function == ReduceOp::custom;
  if (here.custom != there.custom && same_parts) {
    return differs("custom function", here.custom, there.custom);
  }
  if (here.mode != there.mode) return differs("mode", name(here.mode), name(there.mode));
  if (here.algorithm != there.algorithm) {
    return differs("algorithm", name(here.algorithm), name(there.algorithm));
  }
  if (here.group_size != there.group_size) {
    return differs("group size", here.group_size, there.group_size);
  }
  if (here.late_rank != there.late_rank) {
    return differs("late rank", here.late_rank - 1, there.late_rank - 1);
  }
  if (here.learns != there.learns) {
    return differs("learn_shares", here.learns ? 1 : 0, there.learns ? 1 : 0);
  }
  if (here.collective != Collective::allreduce &&
      (here.shares != there.shares || here.custom != there.custom)) {
    return differs("hash of the counts", here.shares, there.shares);
  }
  if (here.shares != there.shares) {
    return differs(here.learns ? "hash of the learnt shares" : "hash of the shares", here.shares,
                   there.shares);
  }
  if (here.codec != there.codec) return differs("codec", name(here.codec), name(there.codec));
  if (here.slot_bytes != there.slot_bytes)
    return differs("slot bytes", here.slot_bytes, there.slot_bytes);
  if (here.epoch != there.epoch) return differs("epoch", here.epoch, there.epoch);
  return std::nullopt;
}

}  // namespace tarpon
