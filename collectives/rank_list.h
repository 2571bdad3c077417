// Ranks and durations in error messages.
#pragma once

#include <fmt/format.h>

#include <string>

#include "transport/time.h"

namespace tarpon::rendezvous {

/// "rank 2", "ranks 2, 5", "ranks 1, 2 and 40 more". REQUIRES: not empty.
template <typename Ranks>
std::string rank_list(const Ranks& ranks) {
  constexpr std::size_t kNamed = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t named = 0;
  for (const auto rank : ranks) {
    if (named == kNamed) return text + fmt::format(" and {} more", ranks.size() - kNamed);
    text += fmt::format("{}{}", named == 0 ? "" : ", ", rank);
    ++named;
  }
  return text;
}

/// "30 s", "0.2 s".
inline std::string duration_text(Duration duration) {
  return fmt::format("{:g} s", std::chrono::duration<double>(duration).count());
}

}  // namespace tarpon::rendezvous
