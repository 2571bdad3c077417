// Structs of the C interface that may be smaller or larger than this version knows them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "collectives/version.h"

namespace tarpon::c_api {

// A larger size is a mistake.
inline constexpr std::size_t kMaxStruct = 4096;

/// Why the size of `given` cannot be right; nothing when it can.
template <typename T>
std::optional<std::string> wrong_size(const T& given, const char* name) {
  static_assert(offsetof(T, size) == 0 && sizeof(T) % 8 == 0 && std::is_trivially_copyable_v<T>);
  if (given.size >= 8 && given.size % 8 == 0 && given.size <= kMaxStruct) return std::nullopt;
  return fmt::format("{}: size is {}: set it to sizeof({}), here {}, and unused members to 0", name,
                     given.size, name, sizeof(T));
}

/// Names the first byte of `given` that is set and that this version does not know. REQUIRES: a
/// right size.
template <typename T>
std::optional<std::string> unknown_members(const T& given, const char* name) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&given);
  for (std::size_t at = sizeof(T); at < given.size; ++at) {
    if (bytes[at] == 0) continue;
    return fmt::format(
        "{}: the byte at offset {} is set, and version {} knows {} bytes: set it to "
        "0, or use a newer library",
        name, at, kVersion, sizeof(T));
  }
  return std::nullopt;
}

/// Returns the part of `given` that this version knows. REQUIRES: a right size.
template <typename T>
T known_part(const T& given) {
  T known{};
  std::memcpy(&known, &given, std::min(given.size, sizeof(T)));
  return known;
}

/// Copies the known part of `given` to `known`, or returns why it is refused.
template <typename T>
std::optional<std::string> read(const T& given, const char* name, T& known) {
  if (auto wrong = wrong_size(given, name)) return wrong;
  if (auto unknown = unknown_members(given, name)) return unknown;
  known = known_part(given);
  return std::nullopt;
}

/// Fills as much of `place` as its size says.
template <typename T>
void write(T value, T& place) {
  value.size = place.size;
  std::memcpy(&place, &value, std::min(value.size, sizeof(T)));
  if (value.size > sizeof(T)) {
    std::memset(reinterpret_cast<unsigned char*>(&place) + sizeof(T), 0, value.size - sizeof(T));
  }
}

}  // namespace tarpon::c_api
