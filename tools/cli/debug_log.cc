#include "tools/cli/debug_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "tools/system/host_info.h"
#include "xdp/base/output_place.h"

namespace tarpon {
namespace {

constexpr const char* kLevels[] = {"", "VERSION", "WARN", "INFO", "TRACE"};
constexpr const char* kSubsystems[] = {"INIT", "NET", "CALL"};

std::string expand(std::string path) {
  const auto replace = [&](const std::string& mark, const std::string& value) {
    for (std::size_t at = path.find(mark); at != std::string::npos; at = path.find(mark)) {
      path.replace(at, mark.size(), value);
    }
  };
  replace("%h", read_host_info().hostname);
  replace("%p", std::to_string(getpid()));
  return path;
}

}  // namespace

Result<DebugLog> DebugLog::open(const Environment& environment) {
  DebugLog log;
  const auto level = environment("TARPON_DEBUG");
  if (!level) return log;
  const auto* found = std::find(std::begin(kLevels) + 1, std::end(kLevels), *level);
  if (found == std::end(kLevels)) {
    return fail(Error::Code::invalid_argument,
                fmt::format("TARPON_DEBUG={}: use VERSION, WARN, INFO or TRACE", *level));
  }
  log.level_ = static_cast<DebugLevel>(found - std::begin(kLevels));
  if (const auto subsystems = environment("TARPON_DEBUG_SUBSYS")) {
    std::istringstream words(*subsystems);
    for (std::string word; std::getline(words, word, ',');) {
      if (std::find(std::begin(kSubsystems), std::end(kSubsystems), word) ==
          std::end(kSubsystems)) {
        return fail(Error::Code::invalid_argument,
                    fmt::format("TARPON_DEBUG_SUBSYS={}: use INIT, NET, CALL", *subsystems));
      }
      log.subsystems_.push_back(word);
    }
  }
  if (const auto path = environment("TARPON_DEBUG_FILE")) {
    auto file = open_stream(expand(*path), "a");
    if (!file) return fail(file.error().code, "TARPON_DEBUG_FILE=" + file.error().message);
    log.file_ = std::shared_ptr<std::FILE>(*file, Close{});
  }
  const Environment told = log.watch(environment);
  for (const char* name : {"TARPON_DEBUG", "TARPON_DEBUG_SUBSYS", "TARPON_DEBUG_FILE"}) told(name);
  return log;
}

void DebugLog::write(DebugLevel level, const char* subsystem, const std::string& text) const {
  if (level > level_) return;
  if (!subsystems_.empty() &&
      std::find(subsystems_.begin(), subsystems_.end(), subsystem) == subsystems_.end()) {
    return;
  }
  std::FILE* file = file_ ? file_.get() : stderr;
  fmt::print(file, "tarpon {} {} [{}] {}\n", kLevels[static_cast<int>(level)], subsystem, getpid(),
             text);
  std::fflush(file);
}

Environment DebugLog::watch(Environment environment) const {
  return [log = *this, environment = std::move(environment)](const char* name) {
    auto value = environment(name);
    if (value) log.write(DebugLevel::info, "INIT", fmt::format("{}={}", name, *value));
    return value;
  };
}

}  // namespace tarpon
