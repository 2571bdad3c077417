#include "tools/cli/program/suggestion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace tarpon::cli {
namespace {

constexpr std::size_t kMost = 3;
constexpr std::size_t kLongestWord = 64;  // nothing is close to a longer word

std::string_view without_dashes(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  return word;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table of distances between prefixes of `b` and those of `a` that end two letters
  // before letter i, one before it, and at it.
  std::vector<std::size_t> two_before, before(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) before[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min(
          {before[j] + 1, row[j - 1] + 1, before[j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) row[j] = std::min(row[j], two_before[j - 2] + 1);
    }
    two_before = std::exchange(before, row);
  }
  return before[b.size()];
}

std::vector<std::string> suggestions(std::string_view word, const std::vector<std::string>& known) {
  const std::string_view letters = without_dashes(word);
  if (letters.size() < 2 || word.size() > kLongestWord) return {};
  const std::size_t limit = std::max<std::size_t>(1, letters.size() / 3);
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(letters, without_dashes(name));
    if (distance <= limit) near.emplace_back(distance, name);
  }
  if (near.empty()) {
    for (const std::string& name : known) {
      if (without_dashes(name).starts_with(letters)) near.emplace_back(0, name);
    }
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [distance, name] : near) {
    if (names.size() < kMost && distance == near.front().first) names.push_back(name);
  }
  return names;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string> names = suggestions(word, known);
  return names.empty() ? "" : fmt::format(": did you mean {}?", fmt::join(names, " or "));
}

}  // namespace tarpon::cli
