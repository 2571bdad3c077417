#include "tools/option_kinds.h"

#include <fmt/format.h>

#include <charconv>

namespace tarpon {

CLI::Validator whole_number(std::uint64_t most) {
  const auto check = [most](const std::string& text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good = error == std::errc() && end == text.data() + text.size() && value <= most;
    return good ? "" : fmt::format("\"{}\" is no whole number from 0 to {}", text, most);
  };
  return {check, ""};
}

}  // namespace tarpon
