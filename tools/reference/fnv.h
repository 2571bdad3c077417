// FNV-1a, to compare data that cannot be compared side by side. No protection against attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tarpon {

inline constexpr std::uint64_t kFnvStart = 14695981039346656037ull;

/// Takes `bytes` into `hash`.
inline void fnv_mix(std::uint64_t& hash, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 1099511628211ull;
  }
}

}  // namespace tarpon
