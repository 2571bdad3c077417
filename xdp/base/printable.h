// Foreign text in messages and reports.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstddef>
#include <string>
#include <string_view>

namespace tarpon {

/// `text` from a peer, a stranger or a file, safe to print on a terminal as a part of a line: every
/// byte that is not printable ASCII becomes '?', and "..." follows the first `limit` bytes of a
/// longer text.
inline std::string printable(std::string_view text, std::size_t limit = 80) {
  std::string line(text.substr(0, limit));
  for (char& c : line) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > limit ? line + "..." : line;
}

/// Limit for a whole message.
inline constexpr std::size_t kLongestMessage = 2000;

}  // namespace tarpon
