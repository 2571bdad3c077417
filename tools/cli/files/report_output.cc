#include "tools/cli/files/report_output.h"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "tools/cli/files/whole_file.h"
#include "tools/system/host_info.h"
#include "tools/version.h"

namespace tarpon {
namespace {

constexpr const char* kStandardOutput = "-";

}  // namespace

std::FILE* text_stream(const std::string& path) {
  if (path != kStandardOutput) return stdout;
  std::FILE* const text = ::fdopen(::dup(STDERR_FILENO), "w");
  return text == nullptr ? stderr : text;
}

Result<void> check_json(const std::string& path) {
  return path.empty() || path == kStandardOutput ? Result<void>() : WholeFile::check(path);
}

nlohmann::json report_config() {
  const HostInfo host = read_host_info();
  return {
      {"command", command_line()},
      {"version", kVersion},
      {"git_commit", kGitCommit},
      {"host", host.hostname},
      {"kernel", host.kernel},
      {"cpu", host.cpu_model},
      {"cpus", host.cpus},
      {"cpu_quota", host.cpu_quota ? nlohmann::json(*host.cpu_quota) : nlohmann::json(nullptr)}};
}

nlohmann::json json_report(nlohmann::json config, nlohmann::json results) {
  return {{"config", std::move(config)}, {"results", std::move(results)}};
}

std::string json_text(const nlohmann::json& json, bool one_line) {
  return json.dump(one_line ? -1 : 1, ' ', true, nlohmann::json::error_handler_t::replace) + '\n';
}

Result<void> write_json(const std::string& path, const nlohmann::json& json) {
  if (path.empty()) return {};
  const std::string text = json_text(json);
  if (path != kStandardOutput) return write_whole_file(path, text);
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return {};
  return fail_system(errno, "standard output: cannot write the JSON");
}

}  // namespace tarpon
