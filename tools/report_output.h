// Where a command's report goes: text for people, JSON for programs.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "xdp/result.h"

namespace tarpon {

/// Where the text goes when `-J path` was given: standard error where the JSON takes standard
/// output ("-"), else standard output.
std::FILE* text_stream(const std::string& path);

/// Whether write_json() will work; true for an empty path and "-".
Result<void> check_json(const std::string& path);

/// Writes `json` to `path` whole, or says why not; to standard output for "-". Bytes that are no
/// UTF-8 are replaced. Writes nothing for an empty path.
Result<void> write_json(const std::string& path, const nlohmann::json& json);

}  // namespace tarpon
