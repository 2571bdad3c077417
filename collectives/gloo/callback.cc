#include "collectives/gloo/callback.h"

#include <gloo/types.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/gloo/probes.h"
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
  if (std::isnan(value)) bits &= 0xffc00000;  // rounding up could leave no NaN
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
    const auto x = static_cast<std::uint64_t>(static_cast<std::int64_t>(a));
    const auto y = static_cast<std::uint64_t>(static_cast<std::int64_t>(b));
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

/// A half's patterns are the small ones of the other half type: sums there are rounded, so both
/// types get operands of their own.
std::vector<Probe> probes_of(std::size_t size) {
  std::vector<Probe> probes{probe_of(size)};
  switch (size) {
    case 1:
      break;
    case 2:
      append_pairs<BFloat>(probes.emplace_back());
      probes.push_back(varied_probe(kHalf));
      probes.push_back(wide_probe(kHalf));
      probes.push_back(wide_probe(kBFloat));
      break;
    case 4:
      probes.push_back(varied_probe(kFloat));
      probes.push_back(wide_probe(kFloat));
      break;
    default:
      probes.push_back(varied_probe(kDouble));
      probes.push_back(wide_probe(kDouble));
  }
  return probes;
}

template <typename T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || kIsHalf<T>;

template <typename T>
int class_of(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    const bool tiny = (value.bits & 0x7c00) == 0 && (value.bits & 0x3ff) != 0;
    return tiny ? FP_SUBNORMAL : std::fpclassify(value_of(value));
  } else if constexpr (kIsHalf<T>) {
    return std::fpclassify(value_of(value));
  } else {
    return std::fpclassify(value);
  }
}

/// Whether `result` is that of `function`. A NaN of any sign and payload is one. Which NaN of its
/// operands a minimum or maximum keeps, and whether subnormal results become 0, is not looked at:
/// callbacks differ there.
template <typename T>
bool is_result(std::uint32_t function, T a, T b, T result) {
  const T expected = combine_one(function, a, b);
  if constexpr (kIsFloat<T>) {
    const bool order = function == TARPON_MIN || function == TARPON_MAX;
    if (order && (class_of(a) == FP_NAN || class_of(b) == FP_NAN)) return true;
    if (class_of(expected) == FP_NAN) return class_of(result) == FP_NAN;
    if (class_of(expected) == FP_SUBNORMAL) return true;
  }
  return std::memcmp(&result, &expected, sizeof(T)) == 0;
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
    T a, b, c;
    std::memcpy(&a, &probe.a[at], sizeof(T));
    std::memcpy(&b, &probe.b[at], sizeof(T));
    std::memcpy(&c, &result[at], sizeof(T));
    if (!is_result(function, a, b, c)) return false;
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
    try {
      combine(result.data(), probe.a.data(), probe.b.data(), result.size() / size);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (...) {
      return std::nullopt;  // it takes no operands as Tarpon's reductions do
    }
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
  const std::pair key(*target, size);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, classify(combine, size)).first->second;
}

}  // namespace tarpon::gloo_shim
