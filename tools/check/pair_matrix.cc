#include "tools/check/pair_matrix.h"

#include <fmt/format.h>

#include <algorithm>

namespace tarpon {
namespace {

// With labels of 7 columns: 2 + 7 + 12 * 9 = 117.
constexpr std::uint32_t kBlock = 12;
constexpr std::size_t kLabel = 7;  // "from 10"

const PairProbe* find(const std::vector<PairProbe>& pairs, Rank from, Rank to) {
  const auto pair = std::find_if(pairs.begin(), pairs.end(), [&](const PairProbe& one) {
    return one.from == from && one.to == to;
  });
  return pair == pairs.end() ? nullptr : &*pair;
}

}  // namespace

std::string pair_matrix(const std::vector<PairProbe>& pairs, std::uint32_t world,
                        const std::function<std::string(const PairProbe&)>& cell,
                        const Colour& colour) {
  const std::size_t label = std::max(kLabel, fmt::formatted_size("from {}", world - 1));
  std::string text;
  for (std::uint32_t first = 0; first < world; first += kBlock) {
    const std::uint32_t end = std::min(world, first + kBlock);
    text += fmt::format("  {:>{}}", "", label);
    for (std::uint32_t to = first; to < end; ++to) {
      text += fmt::format(" {:>8}", fmt::format("to {}", to));
    }
    text += "\n";
    for (std::uint32_t from = 0; from < world; ++from) {
      text += fmt::format("  {:>{}}", fmt::format("from {}", from), label);
      for (std::uint32_t to = first; to < end; ++to) {
        const PairProbe* pair = find(pairs, static_cast<Rank>(from), static_cast<Rank>(to));
        const std::string padded = fmt::format("{:>8}", pair == nullptr ? "-" : cell(*pair));
        const bool failed = pair != nullptr && !pair->works();
        text += " " + (failed ? colour.failure(padded) : padded);
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace tarpon
