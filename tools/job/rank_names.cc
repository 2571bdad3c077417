#include "tools/job/rank_names.h"

#include <fmt/format.h>

namespace tarpon {

std::string rank_names(const std::vector<Rank>& ranks) {
  std::string text;
  for (std::size_t first = 0; first < ranks.size(); ++first) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += first == last ? fmt::format("{}", ranks[first])
                          : fmt::format("{}-{}", ranks[first], ranks[last]);
    first = last;
  }
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", text);
}

std::string rank_count(std::size_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

}  // namespace tarpon
