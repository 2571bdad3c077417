// The transform in plain code, element by element, in the order of addition that hadamard.h states.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "codec/hadamard.h"

namespace tarpon::codec {

/// H of x, unscaled.
template <typename T>
void plain_hadamard(std::vector<T>& x) {
  for (std::size_t half = x.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if ((i & half) != 0) continue;
      const T a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
}

/// The coded bucket as encode() makes it, bit by bit.
inline std::vector<float> plain_encode(const CodedLayout& layout, SignKey key,
                                       const std::vector<float>& in) {
  std::vector<float> coded(layout.room(), 0.0f);
  const float scale = 1 / std::sqrt(static_cast<float>(layout.block));
  for (std::uint64_t block = 0; block < layout.blocks(); ++block) {
    std::vector<float> x(layout.block, 0.0f);
    for (std::uint32_t i = 0; i < layout.block; ++i) {
      const std::uint64_t at = block * layout.block + i;
      const float value = at < layout.count ? in[at] : 0.0f;
      x[i] = value * (negative(key, block, layout.block, i) ? -scale : scale);
    }
    plain_hadamard(x);
    for (std::uint32_t c = 0; c < layout.block; ++c) {
      coded[layout.position(block, c)] = x[c];
    }
  }
  return coded;
}

/// As decode().
inline std::vector<float> plain_decode(const CodedLayout& layout, SignKey key,
                                       const std::vector<float>& coded,
                                       const std::vector<float>& gains) {
  std::vector<float> out(layout.count);
  for (std::uint64_t block = 0; block < layout.blocks(); ++block) {
    const float scale =
        1 / std::sqrt(static_cast<float>(layout.block)) * gains[block % layout.groups];
    std::vector<float> x(layout.block);
    for (std::uint32_t c = 0; c < layout.block; ++c) x[c] = coded[layout.position(block, c)];
    plain_hadamard(x);
    for (std::uint32_t i = 0; i < layout.block; ++i) {
      const std::uint64_t at = block * layout.block + i;
      if (at >= layout.count) break;
      out[at] = x[i] * (negative(key, block, layout.block, i) ? -scale : scale);
    }
  }
  return out;
}

}  // namespace tarpon::codec
