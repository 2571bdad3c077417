// A reduction of the caller's own.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstddef>
#include <cstdint>

namespace tarpon {

/// For ReduceOp::custom. It has to be associative and commutative: ranks apply it in different
/// orders.
struct CustomFunction {
  /// Names the function to the other ranks; different ids are a mismatch. The library gives it no
  /// meaning.
  std::uint32_t id = 0;
  /// out[i] = a[i] op b[i] for all elements. `out` may equal `a`. Pointers may be unaligned. Runs
  /// on the thread that drives the communicator, under its mutex: it must be quick, and must not
  /// call the communicator.
  void (*combine)(void* out, const void* a, const void* b, std::size_t elements,
                  void* context) noexcept = nullptr;
  void* context = nullptr;  // passed to combine; must live until the call has ended
};

}  // namespace tarpon
