#include "collectives/grid/global_names.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace tarpon::grid {
namespace {

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// A text that is read from its beginning, and written anew.
class Rewriting {
 public:
  Rewriting(std::string_view text, const std::vector<Rank>& ranks) : rest_(text), ranks_(ranks) {}

  std::string run() {
    while (!rest_.empty()) {
      const bool in_word =
          !result_.empty() && std::isalnum(static_cast<unsigned char>(result_.back())) != 0;
      if (!in_word && take("ranks ")) {
        take_list();
      } else if (!in_word && take("rank ")) {
        take_rank("");
      } else {
        result_ += rest_.front();
        rest_.remove_prefix(1);
      }
    }
    return std::move(result_);
  }

 private:
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    result_ += word;
    rest_.remove_prefix(word.size());
    return true;
  }

  void take_list() {
    if (!take_rank("")) return;
    while (take_rank(", ") || take_rank(" and ")) continue;
  }

  /// Takes `separator` and the number of a rank, if both follow.
  bool take_rank(std::string_view separator) {
    if (!rest_.starts_with(separator)) return false;
    std::string_view after = rest_.substr(separator.size());
    std::size_t number = 0, digits = 0;
    while (digits < after.size() && digits < 4 && is_digit(after[digits])) {
      number = number * 10 + static_cast<std::size_t>(after[digits++] - '0');
    }
    after.remove_prefix(digits);
    const bool counts = after.starts_with(" of ") && after.size() > 4 && is_digit(after[4]);
    const bool is_other = after.starts_with(" more") || counts ||
                          (!after.empty() && std::isalnum(static_cast<unsigned char>(after[0])));
    if (digits == 0 || number >= ranks_.size() || (is_other && !separator.empty())) return false;
    result_ += separator;
    result_ += std::to_string(ranks_[number]);
    rest_ = after;
    return true;
  }

  std::string_view rest_;
  const std::vector<Rank>& ranks_;
  std::string result_;
};

}  // namespace

std::string global_text(const std::string& text, const std::vector<Rank>& ranks) {
  return Rewriting(text, ranks).run();
}

std::vector<Rank> global_ranks(const std::vector<Rank>& part, const std::vector<Rank>& ranks) {
  std::vector<Rank> global;
  global.reserve(part.size());
  for (const Rank rank : part) {
    if (rank < ranks.size()) global.push_back(ranks[rank]);
  }
  std::sort(global.begin(), global.end());
  return global;
}

}  // namespace tarpon::grid
