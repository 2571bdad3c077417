// The loops of the reduction kernels, left to the compiler's vectoriser.
//
// CMake compiles this file once per instruction set, with TARPON_KERNEL_SET naming the entry point.
// Everything else has internal linkage and nothing inline of another header is called: the linker
// would otherwise merge the copies and hand AVX code to processors without it.
#include <type_traits>

#include "collectives/kernels/kernel_sets.h"

namespace tarpon::kernels {
namespace {

// Receive buffers are unaligned; a fixed-size copy becomes one unaligned load or store.
template <typename T>
T load(const std::byte* bytes, std::size_t i) {
  T value;
  __builtin_memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* bytes, std::size_t i, T value) {
  __builtin_memcpy(bytes + i * sizeof(T), &value, sizeof(T));
}

// Integers compute in their unsigned type, where overflow is defined.
template <typename T>
using Computed = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                             std::type_identity<T>>::type;

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Computed<T>>(a) + static_cast<Computed<T>>(b));
  }
};

struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return b < a ? b : a;
  }
};

struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return b > a ? b : a;
  }
};

struct Product {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Computed<T>>(a) * static_cast<Computed<T>>(b));
  }
};

// Two loops, because out == a would defeat __restrict, and without it the vectoriser's run-time
// overlap test sends exactly that case to the scalar loop.
template <typename T, typename Function>
void into_first(std::byte* __restrict out, const std::byte* __restrict b, std::size_t elements,
                Function function) {
  for (std::size_t i = 0; i < elements; ++i) {
    store<T>(out, i, function(load<T>(out, i), load<T>(b, i)));
  }
}

template <typename T, typename Function>
void into_other(std::byte* __restrict out, const std::byte* __restrict a,
                const std::byte* __restrict b, std::size_t elements, Function function) {
  for (std::size_t i = 0; i < elements; ++i) {
    store<T>(out, i, function(load<T>(a, i), load<T>(b, i)));
  }
}

template <typename T, typename Function>
void apply(void* out, const void* a, const void* b, std::size_t elements, Function function) {
  auto* const to = static_cast<std::byte*>(out);
  auto* const from = static_cast<const std::byte*>(b);
  if (out == a) {
    into_first<T>(to, from, elements, function);
  } else {
    into_other<T>(to, static_cast<const std::byte*>(a), from, elements, function);
  }
}

template <typename T, typename Op>
void combine(void* out, const void* a, const void* b, std::size_t elements) {
  apply<T>(out, a, b, elements, [](T x, T y) { return Op::template apply<T>(x, y); });
}

template <typename T>
void combine_scaled(void* out, const void* a, const void* b, std::size_t elements,
                    std::uint32_t divisor) {
  const T by = static_cast<T>(divisor);
  apply<T>(out, a, b, elements,
           [by](T x, T y) { return static_cast<T>(Sum::apply<T>(x, y) / by); });
}

template <typename T>
void scale(void* inout, std::size_t elements, std::uint32_t numerator, std::uint32_t denominator) {
  auto* const bytes = static_cast<std::byte*>(inout);
  const T up = static_cast<T>(numerator);
  const T down = static_cast<T>(denominator);
  if (std::is_integral_v<T> || numerator == 1) {
    for (std::size_t i = 0; i < elements; ++i) {
      store<T>(bytes, i, static_cast<T>(Product::apply<T>(load<T>(bytes, i), up) / down));
    }
  } else {
    const T factor = static_cast<T>(up / down);
    for (std::size_t i = 0; i < elements; ++i) {
      store<T>(bytes, i, static_cast<T>(load<T>(bytes, i) * factor));
    }
  }
}

// NaN and infinity have all bits of the exponent set: one more carries into the sign's place. In
// integers, which the vectoriser may reorder; one accumulator, so that there is one branch in all.
template <typename T>
bool finite(const void* data, std::size_t elements) {
  using Bits = typename std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
  constexpr Bits kSign = Bits{1} << (8 * sizeof(T) - 1);
  constexpr Bits kLowest = Bits{1} << kMantissa;
  constexpr Bits kExponent = kSign - kLowest;
  const auto* const bytes = static_cast<const std::byte*>(data);
  Bits carried = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    carried |= (load<Bits>(bytes, i) & kExponent) + kLowest;
  }
  return (carried & kSign) == 0;
}

template <typename T>
void combine_weighted(void* out, const void* a, const void* b, std::size_t elements,
                      double weight) {
  const T by = static_cast<T>(weight);
  apply<T>(out, a, b, elements, [by](T x, T y) { return static_cast<T>(x + by * y); });
}

template <typename T>
constexpr ReduceKernels kernels_of(decltype(ReduceKernels::combine) combine, bool additive) {
  ReduceKernels result{combine, nullptr, scale<T>, nullptr, nullptr};
  if (additive) result.combine_scaled = combine_scaled<T>;
  if constexpr (!std::is_integral_v<T>) {
    if (additive) result.combine_weighted = combine_weighted<T>;
    result.finite = finite<T>;
  }
  return result;
}

// In the order of ReduceOp.
template <typename T>
constexpr ReduceKernels kTable[kReduceOps] = {
    kernels_of<T>(combine<T, Sum>, true),  // sum
    kernels_of<T>(combine<T, Sum>, true),  // avg
    kernels_of<T>(combine<T, Min>, false),     kernels_of<T>(combine<T, Max>, false),
    kernels_of<T>(combine<T, Product>, false),
};

}  // namespace

const ReduceKernels& TARPON_KERNEL_SET(DataType type, ReduceOp function) {
  const auto op = static_cast<std::size_t>(function);
  switch (type) {
    case DataType::float32:
      return kTable<float>[op];
    case DataType::float64:
      return kTable<double>[op];
    case DataType::int32:
      return kTable<std::int32_t>[op];
    case DataType::int64:
      return kTable<std::int64_t>[op];
  }
  __builtin_unreachable();
}

}  // namespace tarpon::kernels
