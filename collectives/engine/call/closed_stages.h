// Which stages of an operation have closed.
//
// A value. Not thread-safe.
#pragma once

#include <cstdint>

namespace tarpon {

class ClosedStages {
 public:
  /// The operation has `count` stages, at most 31.
  void open(std::uint32_t count) { count_ = count; }
  void close(std::uint32_t stage) { closed_ |= 1u << stage; }
  void reopen(std::uint32_t stage) { closed_ &= ~(1u << stage); }

  std::uint32_t count() const { return count_; }
  bool has(std::uint32_t stage) const { return (closed_ >> stage & 1) != 0; }
  bool all() const { return closed_ + 1u == 1u << count_; }

 private:
  std::uint32_t count_ = 0;
  std::uint32_t closed_ = 0;  // bit s: stage s
};

}  // namespace tarpon
