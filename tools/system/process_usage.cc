#include "tools/system/process_usage.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace tarpon {
namespace {

std::int64_t entries(const char* directory) {
  std::error_code error;
  const std::filesystem::directory_iterator found(directory, error);
  return error ? 0 : std::distance(begin(found), end(found));
}

std::int64_t resident() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace

ProcessHoldings ProcessHoldings::read() {
  return {entries("/proc/self/fd"), entries("/proc/self/task"), resident()};
}

}  // namespace tarpon
