#include "collectives/gloo/callback.h"

#include <gloo/types.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/tarpon.h"

namespace tarpon::gloo_shim {
namespace {

// Values whose sums and products every float type holds exactly: at most 3 significant bits.
constexpr std::array kValues = {0.5,  -0.5, 1.0, -1.0, 1.5,  -1.5, 2.0,  -2.0,
                                0.75, -3.0, 3.0, -5.0, 0.25, 6.0,  -6.0, 7.0};

struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

float value_of(Half half) {
  ::gloo::float16 number;
  number.x = half.bits;
  return ::gloo::cpu_half2float(number);
}

float value_of(BFloat number) {
  const std::uint32_t bits = std::uint32_t{number.bits} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Rounds to the nearest, ties to even.
void assign(Half& to, float value) {
  to.bits = ::gloo::cpu_float2half_rn(value).x;
}

void assign(BFloat& to, float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  to.bits = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat>;

template <typename T>
T combine_numbers(std::uint32_t function, T a, T b) {
  if (function == TARPON_MIN) return b < a ? b : a;
  if (function == TARPON_MAX) return a < b ? b : a;
  if constexpr (std::is_floating_point_v<T>) {
    return function == TARPON_SUM ? a + b : a * b;
  } else {
    // Unsigned and wide: narrow types would become int, which may overflow.
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    switch (function) {
      case TARPON_SUM:
        return static_cast<T>(x + y);
      case TARPON_PROD:
        return static_cast<T>(x * y);
      case TARPON_BAND:
        return static_cast<T>(x & y);
      case TARPON_BOR:
        return static_cast<T>(x | y);
      default:
        return static_cast<T>(x ^ y);
    }
  }
}

template <typename T>
T combine_one(std::uint32_t function, T a, T b) {
  if constexpr (kIsHalf<T>) {
    const float x = value_of(a);
    const float y = value_of(b);
    // The minimum of two values is one of them, bit by bit.
    if (function == TARPON_MIN) return y < x ? b : a;
    if (function == TARPON_MAX) return x < y ? b : a;
    T result;
    assign(result, combine_numbers(function, x, y));
    return result;
  } else {
    return combine_numbers(function, a, b);
  }
}

using Bytes = std::vector<unsigned char>;

/// Operands of a callback, as bytes.
struct Probe {
  Bytes a, b;
};

template <typename T>
void append(Bytes& bytes, T value) {
  const auto* const raw = reinterpret_cast<const unsigned char*>(&value);
  bytes.insert(bytes.end(), raw, raw + sizeof value);
}

/// Every pair of kValues in the float type T, whose patterns are integers of both signs too.
template <typename T>
void append_pairs(Probe& probe) {
  const auto number = [](double value) {
    if constexpr (kIsHalf<T>) {
      T half;
      assign(half, static_cast<float>(value));
      return half;
    } else {
      return static_cast<T>(value);
    }
  };
  for (const double a : kValues) {
    for (const double b : kValues) {
      append(probe.a, number(a));
      append(probe.b, number(b));
    }
  }
}

Probe probe_of(std::size_t size) {
  Probe probe;
  switch (size) {
    case 1:
      for (unsigned i = 0; i < 256; ++i) {
        append(probe.a, static_cast<std::uint8_t>(i * 7 + 3));
        append(probe.b, static_cast<std::uint8_t>(i * 101 + 58));
      }
      break;
    case 2:
      append_pairs<Half>(probe);
      break;
    case 4:
      append_pairs<float>(probe);
      break;
    default:
      append_pairs<double>(probe);
  }
  return probe;
}

/// Numbers of `size` bytes near 1, of both signs, whose lowest bit is set. As integers they are
/// odd, so that no product of theirs is 0.
Probe varied_probe(std::size_t size) {
  // Bits of the mantissa, and the smallest exponent of eight.
  const auto [mantissa, exponent] = size == 2   ? std::pair(10, 12u)
                                    : size == 4 ? std::pair(23, 123u)
                                                : std::pair(52, 1019u);
  Probe probe;
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (int i = 0; i < 256; ++i) {
    for (Bytes* operand : {&probe.a, &probe.b}) {
      state = state * 6364136223846793005 + 1442695040888963407;
      const std::uint64_t random = state >> 11;
      const std::uint64_t fraction = (random & ((std::uint64_t{1} << mantissa) - 1)) | 1;
      const std::uint64_t sign = state >> 63;
      const std::uint64_t bits =
          sign << (8 * size - 1) | (exponent + (state >> 60 & 7)) << mantissa | fraction;
      const auto* const raw = reinterpret_cast<const unsigned char*>(&bits);
      operand->insert(operand->end(), raw, raw + size);
    }
  }
  return probe;
}

/// A half's patterns are the small ones of the other half type: sums there are rounded, so both
/// types get operands of their own.
std::vector<Probe> probes_of(std::size_t size) {
  std::vector<Probe> probes{probe_of(size)};
  if (size == 2) append_pairs<BFloat>(probes.emplace_back());
  if (size > 1) probes.push_back(varied_probe(size));
  return probes;
}

/// Minimum and maximum of float16 are those of bfloat16, but for patterns that are NaN in float16
/// alone: as bfloat16 they are large numbers. Callbacks of float16 keep a NaN, or pass it over, or
/// keep only that of one operand. None of these choices gives both results of bfloat16.
bool is_order_of_bfloat16(const Combine& combine, std::uint32_t function) {
  constexpr std::uint16_t kOne = 0x3c00, kLarge = 0x7e00, kLargeNegative = 0xfe00;
  const std::array a{kLarge, kLargeNegative}, b{kOne, kOne};
  std::array result = a;
  combine(result.data(), a.data(), b.data(), result.size());
  return result ==
         (function == TARPON_MIN ? std::array{kOne, kLargeNegative} : std::array{kLarge, kOne});
}

template <typename T>
bool computes(std::uint32_t function, const Probe& probe, const Bytes& result) {
  for (std::size_t at = 0; at < result.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, &probe.a[at], sizeof(T));
    std::memcpy(&b, &probe.b[at], sizeof(T));
    const T expected = combine_one(function, a, b);
    if (std::memcmp(&result[at], &expected, sizeof(T)) != 0) return false;
  }
  return true;
}

bool computes(const Reduction& candidate, const Probe& probe, const Bytes& result) {
  switch (candidate.type) {
    case TARPON_FLOAT32:
      return computes<float>(candidate.function, probe, result);
    case TARPON_FLOAT64:
      return computes<double>(candidate.function, probe, result);
    case TARPON_FLOAT16:
      return computes<Half>(candidate.function, probe, result);
    case TARPON_BFLOAT16:
      return computes<BFloat>(candidate.function, probe, result);
    case TARPON_INT8:
      return computes<std::int8_t>(candidate.function, probe, result);
    case TARPON_UINT8:
      return computes<std::uint8_t>(candidate.function, probe, result);
    case TARPON_INT16:
      return computes<std::int16_t>(candidate.function, probe, result);
    case TARPON_UINT16:
      return computes<std::uint16_t>(candidate.function, probe, result);
    case TARPON_INT32:
      return computes<std::int32_t>(candidate.function, probe, result);
    case TARPON_UINT32:
      return computes<std::uint32_t>(candidate.function, probe, result);
    case TARPON_INT64:
      return computes<std::int64_t>(candidate.function, probe, result);
    default:
      return computes<std::uint64_t>(candidate.function, probe, result);
  }
}

std::vector<std::uint32_t> types_of(std::size_t size) {
  switch (size) {
    case 1:
      return {TARPON_INT8, TARPON_UINT8};
    case 2:
      return {TARPON_FLOAT16, TARPON_BFLOAT16, TARPON_INT16, TARPON_UINT16};
    case 4:
      return {TARPON_FLOAT32, TARPON_INT32, TARPON_UINT32};
    case 8:
      return {TARPON_FLOAT64, TARPON_INT64, TARPON_UINT64};
    default:
      return {};
  }
}

bool is_float(std::uint32_t type) {
  return type == TARPON_FLOAT32 || type == TARPON_FLOAT64 || type == TARPON_FLOAT16 ||
         type == TARPON_BFLOAT16;
}

}  // namespace

std::optional<Reduction> classify(const Combine& combine, std::size_t size) {
  const std::vector<std::uint32_t> types = types_of(size);
  if (types.empty() || !combine) return std::nullopt;
  const std::vector<Probe> probes = probes_of(size);
  std::vector<Bytes> results;
  for (const Probe& probe : probes) {
    Bytes& result = results.emplace_back(probe.a.size());
    combine(result.data(), probe.a.data(), probe.b.data(), result.size() / size);
  }
  for (const std::uint32_t type : types) {
    for (const std::uint32_t function :
         {TARPON_SUM, TARPON_MIN, TARPON_MAX, TARPON_PROD, TARPON_BAND, TARPON_BOR, TARPON_BXOR}) {
      const bool bitwise = function >= TARPON_BAND;
      if (bitwise && is_float(type)) continue;
      const Reduction candidate{type, function};
      bool fits = true;
      for (std::size_t i = 0; i < probes.size(); ++i) {
        fits = fits && computes(candidate, probes[i], results[i]);
      }
      if (!fits) continue;
      const bool ordered = function == TARPON_MIN || function == TARPON_MAX;
      if (type == TARPON_FLOAT16 && ordered && is_order_of_bfloat16(combine, function)) {
        return Reduction{TARPON_BFLOAT16, function};
      }
      return candidate;
    }
  }
  return std::nullopt;
}

std::optional<Reduction> classify_function(const Combine& combine, std::size_t size) {
  using Function = void (*)(void*, const void*, const void*, std::size_t);
  const Function* const target = combine.target<Function>();
  if (target == nullptr) return std::nullopt;
  // Never destroyed: threads of the program may run until its very end.
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<std::pair<Function, std::size_t>, std::optional<Reduction>>;
  const std::lock_guard lock(mutex);
  const auto [entry, fresh] = known.try_emplace({*target, size});
  if (fresh) entry->second = classify(combine, size);
  return entry->second;
}

}  // namespace tarpon::gloo_shim
