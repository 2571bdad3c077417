// Where a command's report goes: text for people, JSON for programs.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "xdp/base/result.h"

namespace tarpon {

/// The stream for the text if `-J path` was given: standard error if the JSON takes standard output
/// ("-"), else standard output. It stays open for the life of the process. Local ranks inherit it,
/// because their own standard error is captured.
std::FILE* text_stream(const std::string& path);

/// Whether write_json() will work; true for an empty path and "-".
Result<void> check_json(const std::string& path);

/// The first members of "config" in each command's JSON: "command", "version", "git_commit",
/// "host", "kernel", "cpu", "cpus" and "cpu_quota".
nlohmann::json report_config();

/// The one shape of each command's JSON: {"config": CONFIG, "results": RESULTS}. The results are an
/// array; those of `tarpon info` are an object.
nlohmann::json json_report(nlohmann::json config, nlohmann::json results);

/// `json` as ASCII text, ending in a newline. Bytes that are no UTF-8 are replaced.
std::string json_text(const nlohmann::json& json, bool one_line = false);

/// Writes `json` to `path` completely or not at all; to standard output for "-". Writes nothing for
/// an empty path.
Result<void> write_json(const std::string& path, const nlohmann::json& json);

}  // namespace tarpon
