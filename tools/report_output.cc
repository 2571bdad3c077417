#include "tools/report_output.h"

#include <cerrno>
#include <nlohmann/json.hpp>

#include "tools/whole_file.h"

namespace tarpon {
namespace {

constexpr const char* kStandardOutput = "-";

}  // namespace

std::FILE* text_stream(const std::string& path) {
  return path == kStandardOutput ? stderr : stdout;
}

Result<void> check_json(const std::string& path) {
  return path.empty() || path == kStandardOutput ? Result<void>() : WholeFile::check(path);
}

Result<void> write_json(const std::string& path, const nlohmann::json& json) {
  if (path.empty()) return {};
  const std::string text =
      json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  if (path != kStandardOutput) return write_whole_file(path, text);
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return {};
  return fail_system(errno, "standard output: cannot write the JSON");
}

}  // namespace tarpon
