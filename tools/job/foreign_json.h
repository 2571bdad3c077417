// JSON of another process: of a rank, or of a status socket.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace tarpon {

/// Levels of brackets that no message of Tarpon's has.
inline constexpr int kDeepestJson = 8;

/// The value of `text`. Empty if that is no JSON, or nests deeper than kDeepestJson: what prints
/// and destroys a value recurses.
std::optional<nlohmann::json> parse_foreign_json(std::string_view text);

}  // namespace tarpon
