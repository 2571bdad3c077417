// JSON of another process: of a rank, or of a status socket.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

namespace tarpon {

/// Levels of brackets that no message of Tarpon's has.
inline constexpr int kDeepestJson = 8;

/// The value of `text`. Empty if that is no JSON, or nests deeper than kDeepestJson: what prints
/// and destroys a value recurses.
std::optional<nlohmann::json> parse_foreign_json(std::string_view text);

/// take(json, value) sets `value` to what `json` holds, and returns whether that has the type of
/// `value` and fits in it; nlohmann's own conversions cast numbers of any size.
template <std::integral T>
bool take(const nlohmann::json& json, T& value) {
  if constexpr (std::same_as<T, bool>) {
    if (!json.is_boolean()) return false;
    value = json.get<bool>();
    return true;
  } else if (json.is_number_unsigned()) {
    const auto number = json.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return false;
    value = static_cast<T>(number);
    return true;
  } else if (std::signed_integral<T> && json.is_number_integer()) {
    const auto number = json.get<std::int64_t>();
    if (number < static_cast<std::int64_t>(std::numeric_limits<T>::min())) return false;
    value = static_cast<T>(number);
    return true;
  } else {
    return false;
  }
}

inline bool take(const nlohmann::json& json, double& value) {
  if (!json.is_number()) return false;
  value = json.get<double>();
  return true;
}

template <std::size_t N>
bool take(const nlohmann::json& json, std::array<double, N>& values) {
  if (!json.is_array() || json.size() != N) return false;
  for (std::size_t i = 0; i < N; ++i) {
    if (!take(json[i], values[i])) return false;
  }
  return true;
}

template <typename T>
bool take(const nlohmann::json& json, std::vector<T>& values) {
  if (!json.is_array()) return false;
  values.clear();
  values.reserve(json.size());
  for (const nlohmann::json& one : json) {
    if (!take(one, values.emplace_back())) return false;
  }
  return true;
}

/// The same for a member of an object.
template <typename T>
bool take(const nlohmann::json& object, const char* name, T& value) {
  const auto found = object.find(name);
  return found != object.end() && take(*found, value);
}

}  // namespace tarpon
