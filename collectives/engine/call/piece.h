// A piece of the work on the buffers of a call: encoding, decoding, filling, copying.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>
#include <functional>

namespace tarpon {

/// Touches nothing but the buffers of one call, or a buffer that no call has yet: it may run in any
/// thread, without the lock that guards the engine.
struct Piece {
  std::uint64_t bytes = 0;  // of the bucket that it moves
  std::function<void(std::uint64_t first, std::uint64_t count)> work;
  std::uint64_t first = 0;
  std::uint64_t count = 0;

  void run() const noexcept { work(first, count); }
};

}  // namespace tarpon
