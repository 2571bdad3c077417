// The loops of the reduction kernels, left to the compiler's vectoriser.
//
// CMake compiles this file once per instruction set, with TARPON_KERNEL_SET naming the entry point.
// Everything else has internal linkage and nothing inline of another header is called: the linker
// would otherwise merge the copies and hand AVX code to processors without it.
#include <type_traits>

#include "collectives/engine/kernels/reduce_sets.h"
#include "collectives/engine/kernels/vectors.h"

#if __FINITE_MATH_ONLY__
#error "NaN and infinity have to stay: compile without -ffast-math and -ffinite-math-only"
#endif

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

// Integers compute in an unsigned type that is not promoted, so that overflow is defined.
template <typename T>
using Computed =
    std::conditional_t<!std::is_integral_v<T>, T,
                       std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>>;

// Divisors, which may be larger than the elements.
template <typename T>
using Divisor = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, std::int32_t, T>;

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Computed<T>>(a) + static_cast<Computed<T>>(b));
  }
};

// Of integers; those of floats are below.
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

struct BitAnd {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct BitOr {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct BitXor {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
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
  const auto by = static_cast<Divisor<T>>(divisor);
  apply<T>(out, a, b, elements,
           [by](T x, T y) { return static_cast<T>(Sum::apply<T>(x, y) / by); });
}

// Two loops, as above.
template <typename T, typename Function>
void change(void* out, const void* in, std::size_t elements, Function function) {
  auto* const to = static_cast<std::byte*>(out);
  if (out == in) {
    for (std::size_t i = 0; i < elements; ++i) store<T>(to, i, function(load<T>(to, i)));
    return;
  }
  auto* const from = static_cast<const std::byte*>(in);
  [](std::byte* __restrict first, const std::byte* __restrict second, std::size_t count,
     Function change_one) {
    for (std::size_t i = 0; i < count; ++i) store<T>(first, i, change_one(load<T>(second, i)));
  }(to, from, elements, function);
}

template <typename T>
void scale(void* out, const void* in, std::size_t elements, std::uint32_t numerator,
           std::uint32_t denominator) {
  const auto down = static_cast<Divisor<T>>(denominator);
  const T up = static_cast<T>(numerator);
  if (std::is_integral_v<T> || numerator == 1) {
    change<T>(out, in, elements,
              [=](T x) { return static_cast<T>(Product::apply<T>(x, up) / down); });
  } else {
    const T factor = static_cast<T>(up / down);
    change<T>(out, in, elements, [=](T x) { return static_cast<T>(x * factor); });
  }
}

// NaN and infinity have all bits of the exponent set: adding one to it carries into the sign bit.
// Uses integers, which the vectoriser may reorder, and one accumulator, so that there is only one
// branch.
template <typename Bits, int kMantissa>
bool finite(const void* data, std::size_t elements) {
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  constexpr Bits kLowest = static_cast<Bits>(Bits{1} << kMantissa);
  constexpr Bits kExponent = static_cast<Bits>(kSign - kLowest);
  const auto* const bytes = static_cast<const std::byte*>(data);
  Bits carried = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    carried = static_cast<Bits>(carried | ((load<Bits>(bytes, i) & kExponent) + kLowest));
  }
  return (carried & kSign) == 0;
}

// out[i] = function(a[i], b[i]) in vectors of float32, those of float64 in vectors of float64. The
// rest is computed in a copy that is padded with zeros. A vector is read before its place is
// written, so that `out` may equal `a`.
template <typename Out, typename A, typename B, typename Function>
void apply_wide(void* out, const void* a, const void* b, std::size_t elements, Function function) {
  auto* const to = static_cast<std::byte*>(out);
  auto* const first = static_cast<const std::byte*>(a);
  auto* const second = static_cast<const std::byte*>(b);
  constexpr std::size_t kStep = B::kBytes == 8 ? kLanes / 2 : kLanes;
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    Out::store(to + i * Out::kBytes,
               function(A::load(first + i * A::kBytes), B::load(second + i * B::kBytes)));
  }
  const std::size_t rest = elements - i;
  if (rest == 0) return;
  std::byte x[4 * kLanes] = {}, y[4 * kLanes] = {};
  __builtin_memcpy(x, first + i * A::kBytes, rest * A::kBytes);
  __builtin_memcpy(y, second + i * B::kBytes, rest * B::kBytes);
  Out::store(x, function(A::load(x), B::load(y)));
  __builtin_memcpy(to + i * Out::kBytes, x, rest * Out::kBytes);
}

struct WideSum {
  static Floats apply(const Floats& a, const Floats& b) { return a + b; }
};

struct WideProduct {
  static Floats apply(const Floats& a, const Floats& b) { return a * b; }
};

// Minimum and maximum of floats. They do not depend on the order of the operands, so that all ranks
// have the same bits: of -0 and +0, -0 is the smaller one, and where an operand is NaN the result
// is the quiet NaN without sign and payload.
//
// `a < b ? a : b` is one instruction, which takes the second operand if no operand is smaller. So
// the results for both orders are one number, or zeros of both signs, or hold the NaN.
template <typename Vector>
Vector one_nan(const Vector& value, const Vector& either) {
  return either == either ? value : Vector{} + __builtin_nanf("");
}

struct WideMin {
  template <typename Vector>
  static Vector apply(const Vector& a, const Vector& b) {
    const auto x = bits(a < b ? a : b), y = bits(b < a ? b : a);
    const auto either = __builtin_bit_cast(Vector, x | y);
    return one_nan(either, either);
  }
};

struct WideMax {
  template <typename Vector>
  static Vector apply(const Vector& a, const Vector& b) {
    const auto x = bits(a > b ? a : b), y = bits(b > a ? b : a);
    return one_nan(__builtin_bit_cast(Vector, x & y), __builtin_bit_cast(Vector, x | y));
  }
};

template <typename Half, typename Op, typename Out, typename A>
void combine_wide(void* out, const void* a, const void* b, std::size_t elements) {
  apply_wide<Out, A, Half>(out, a, b, elements,
                           [](const auto& x, const auto& y) { return Op::apply(x, y); });
}

template <typename Half, typename Out, typename A>
void combine_wide_scaled(void* out, const void* a, const void* b, std::size_t elements,
                         std::uint32_t divisor) {
  const auto by = static_cast<float>(divisor);
  apply_wide<Out, A, Half>(out, a, b, elements,
                           [by](const Floats& x, const Floats& y) { return (x + y) / by; });
}

template <typename Half, typename In>
void scale_wide(void* out, const void* in, std::size_t elements, std::uint32_t numerator,
                std::uint32_t denominator) {
  const auto up = static_cast<float>(numerator);
  const auto down = static_cast<float>(denominator);
  if (numerator == 1) {
    apply_wide<Half, In, In>(out, in, in, elements,
                             [=](const Floats& x, const Floats&) { return x / down; });
  } else {
    const float factor = up / down;
    apply_wide<Half, In, In>(out, in, in, elements,
                             [=](const Floats& x, const Floats&) { return x * factor; });
  }
}

template <typename T>
constexpr ReduceKernels kernels_of(decltype(ReduceStep::combine) combine, bool additive) {
  ReduceStep step{combine, nullptr};
  if (additive) step.combine_scaled = combine_scaled<T>;
  ReduceKernels result{step, step, step, step, scale<T>, scale<T>, nullptr};
  if constexpr (!std::is_integral_v<T>) {
    if (additive) {
      result.finite = sizeof(T) == 4 ? finite<std::uint32_t, 23> : finite<std::uint64_t, 52>;
    }
  }
  return result;
}

template <typename Half, typename Op, typename Out, typename A>
constexpr ReduceStep wide_step(bool additive) {
  ReduceStep step{combine_wide<Half, Op, Out, A>, nullptr};
  if (additive && Out::kBytes == Half::kBytes) {
    step.combine_scaled = combine_wide_scaled<Half, Out, A>;
  }
  return step;
}

/// Sums and products.
template <typename Half, typename Op>
constexpr ReduceKernels wide_kernels(bool additive) {
  return {wide_step<Half, Op, Half, Half>(additive),
          wide_step<Half, Op, Single, Half>(additive),
          wide_step<Half, Op, Single, Single>(additive),
          wide_step<Half, Op, Half, Single>(additive),
          scale_wide<Half, Half>,
          scale_wide<Half, Single>,
          finite<std::uint16_t, Half::kMantissa>};
}

/// min and max: partial results are elements.
template <typename Half, typename Op>
constexpr ReduceKernels wide_order() {
  const ReduceStep step{combine_wide<Half, Op, Half, Half>, nullptr};
  return {step,
          step,
          step,
          step,
          scale_wide<Half, Half>,
          scale_wide<Half, Half>,
          finite<std::uint16_t, Half::kMantissa>};
}

template <typename T, typename Op>
constexpr decltype(ReduceStep::combine) combine_bits() {
  if constexpr (std::is_integral_v<T>) return combine<T, Op>;
  return nullptr;
}

template <typename T, typename Op, typename WideOp>
constexpr decltype(ReduceStep::combine) combine_order() {
  using Element = std::conditional_t<sizeof(T) == 8, Double, Single>;
  if constexpr (std::is_integral_v<T>) return combine<T, Op>;
  return combine_wide<Element, WideOp, Element, Element>;
}

// In the order of ReduceOp; the entry of custom is empty.
template <typename T>
constexpr ReduceKernels kTable[kReduceOps] = {
    kernels_of<T>(combine<T, Sum>, true),  // sum
    kernels_of<T>(combine<T, Sum>, true),  // avg
    kernels_of<T>(combine_order<T, Min, WideMin>(), false),
    kernels_of<T>(combine_order<T, Max, WideMax>(), false),
    kernels_of<T>(combine<T, Product>, false),
    kernels_of<T>(combine_bits<T, BitAnd>(), false),
    kernels_of<T>(combine_bits<T, BitOr>(), false),
    kernels_of<T>(combine_bits<T, BitXor>(), false),
};

template <typename Half>
constexpr ReduceKernels kWideTable[kReduceOps] = {
    wide_kernels<Half, WideSum>(true),  // sum
    wide_kernels<Half, WideSum>(true),  // avg
    wide_order<Half, WideMin>(),
    wide_order<Half, WideMax>(),
    wide_kernels<Half, WideProduct>(false),
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
    case DataType::float16:
      return kWideTable<Float16>[op];
    case DataType::bfloat16:
      return kWideTable<Bfloat16>[op];
    case DataType::int8:
      return kTable<std::int8_t>[op];
    case DataType::uint8:
      return kTable<std::uint8_t>[op];
    case DataType::int16:
      return kTable<std::int16_t>[op];
    case DataType::uint16:
      return kTable<std::uint16_t>[op];
    case DataType::uint32:
      return kTable<std::uint32_t>[op];
    case DataType::uint64:
      return kTable<std::uint64_t>[op];
  }
  __builtin_unreachable();
}

}  // namespace tarpon::kernels
