// Random signs by position: words of 32 signs, each word a hash of its position.
//
// A block of n elements has W = max(16, n / 32) words; element e takes bit 31 - e div W of word e
// mod W. So words in a register, shifted left, are the signs of as many elements in order, for
// registers of 4, 8 and 16 lanes alike. Elements that lie a multiple of W apart share their words;
// so do the elements that the first butterflies combine.
//
// Internal linkage: this is compiled for several instruction sets (see transform.cc).
#pragma once

#include <cstdint>

#include "codec/hadamard.h"

namespace tarpon::codec::kernels {
namespace {

/// Words of a block of n elements.
constexpr std::uint32_t sign_words(std::uint32_t block_elements) {
  return block_elements < 512 ? 16 : block_elements / 32;
}

/// MurmurHash3's 32-bit finaliser.
inline std::uint32_t finalised(std::uint32_t value) {
  value = (value ^ value >> 16) * 0x85ebca6bu;
  value = (value ^ value >> 13) * 0xc2b2ae35u;
  return value ^ value >> 16;
}

/// Two rounds, each with half of the key: with one round, two keys would give the same words at
/// other positions.
inline std::uint32_t sign_word(SignKey key, std::uint32_t counter) {
  return finalised(finalised(counter ^ key.first) + key.second);
}

inline std::uint32_t sign_word(SignKey key, std::uint64_t block, std::uint32_t block_elements,
                               std::uint32_t word) {
  return sign_word(key, static_cast<std::uint32_t>(block * sign_words(block_elements)) + word);
}

}  // namespace
}  // namespace tarpon::codec::kernels
