// What every fuzz target is made of. A target is one file that defines LLVMFuzzerTestOneInput() and
// calls require() for what must hold for every input. In the preset `fuzz` libFuzzer calls it, in
// the others replay.cc. tests/fuzz/README.md says how to add one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace tarpon::fuzz {

/// Ends the process with a message when `holds` is false: both drivers then keep the input.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return size == 0 ? std::string_view()
                   : std::string_view(reinterpret_cast<const char*>(data), size);
}

/// Reads an input as a sequence of numbers. At its end all numbers are 0.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }

  /// Little-endian.
  template <typename T>
  T number() {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T) && !rest_.empty(); ++i) {
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(rest_.front()) << (8 * i)));
      rest_ = rest_.subspan(1);
    }
    return value;
  }
  std::uint8_t byte() { return number<std::uint8_t>(); }

  /// In [0, limit). REQUIRES: 0 < limit <= 256.
  std::uint32_t below(std::uint32_t limit) { return byte() % limit; }

  /// The next `count` bytes, or what is left of them.
  std::span<const std::uint8_t> bytes(std::size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace tarpon::fuzz
