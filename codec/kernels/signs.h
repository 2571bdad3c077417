// Random signs by position: words of 32 of them, each a hash of where it is.
//
// Element e of a block takes bit 31 - (e div 16) mod 32 of word (e div 512) x 16 + e mod 16. So 16
// words in registers, shifted left one bit at a time, are the signs of 512 elements in order, for
// registers of 4, 8 and 16 lanes alike.
//
// Internal linkage: this is compiled for several instruction sets (see transform.cc).
#pragma once

#include <cstdint>

#include "codec/hadamard.h"

namespace tarpon::codec::kernels {
namespace {

constexpr std::uint32_t kSignLanes = 16;
constexpr std::uint32_t kSignGroup = 32 * kSignLanes;

/// Words of a block of n elements.
constexpr std::uint32_t sign_words(std::uint32_t block_elements) {
  return block_elements < kSignGroup ? kSignLanes : block_elements / 32;
}

/// MurmurHash3's 32-bit finaliser.
inline std::uint32_t finalised(std::uint32_t value) {
  value = (value ^ value >> 16) * 0x85ebca6bu;
  value = (value ^ value >> 13) * 0xc2b2ae35u;
  return value ^ value >> 16;
}

/// Two rounds with a half of the key each: with one, two keys would give the same words elsewhere.
inline std::uint32_t sign_word(SignKey key, std::uint32_t counter) {
  return finalised(finalised(counter ^ key.first) + key.second);
}

inline std::uint32_t sign_word(SignKey key, std::uint64_t block, std::uint32_t block_elements,
                               std::uint32_t word) {
  return sign_word(key, static_cast<std::uint32_t>(block * sign_words(block_elements)) + word);
}

}  // namespace
}  // namespace tarpon::codec::kernels
