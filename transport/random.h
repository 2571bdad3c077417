// A small deterministic generator for simulation and fault injection: the same numbers on every
// compiler, which std:: distributions do not promise.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>

namespace tarpon {

/// SplitMix64 (Steele, Lea, Flood 2014). Copyable; a copy repeats the sequence.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }

  /// Uniform in [0, limit). REQUIRES: limit > 0. The bias of the modulo is below 2^-32 for limits
  /// below 2^32.
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }

  /// True with probability p, to a resolution of 2^-53.
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1p-53 < p; }

 private:
  std::uint64_t state_;
};

}  // namespace tarpon
