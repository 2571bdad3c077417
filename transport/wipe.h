// Wipes out memory that had a key or a secret, so that no later reader of this memory finds it.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstddef>
#include <span>

namespace tarpon {

/// Fills `memory` with zeros. The compiler does not leave it out.
void wipe(std::span<std::byte> memory);

/// Wipes out the content that `bytes`, a string or an array, has at the end of this object, which
/// `bytes` outlives. A string that grows leaves its content in memory that it had before: reserve
/// first.
template <typename Bytes>
class WipeAtEnd {
 public:
  explicit WipeAtEnd(Bytes& bytes) : bytes_(bytes) {}
  ~WipeAtEnd() { wipe(std::as_writable_bytes(std::span(bytes_))); }
  WipeAtEnd(const WipeAtEnd&) = delete;
  WipeAtEnd& operator=(const WipeAtEnd&) = delete;

 private:
  Bytes& bytes_;
};

}  // namespace tarpon
