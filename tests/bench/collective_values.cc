#include "tests/bench/collective_values.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace tarpon::bench {
namespace {

constexpr std::array kKnown{"all_gather", "reduce_scatter", "broadcast", "reduce",
                            "alltoall",   "gather",         "scatter"};

}  // namespace

CollectiveValues::CollectiveValues(std::string collective, int rank, int ranks, std::size_t bytes)
    : collective_(std::move(collective)),
      rank_(static_cast<std::size_t>(rank)),
      ranks_(static_cast<std::size_t>(ranks)),
      whole_(bytes / sizeof(float)) {
  if (std::find(kKnown.begin(), kKnown.end(), collective_) == kKnown.end()) {
    throw std::invalid_argument("no collective " + collective_);
  }
}

std::vector<float> CollectiveValues::input_of(std::size_t rank) const {
  const bool of_root = collective_ == "broadcast" || collective_ == "scatter";
  if (of_root && rank != 0) return {};
  const bool is_part = collective_ == "all_gather" || collective_ == "gather";
  std::vector<float> values(is_part ? part() : whole_);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((i * 7 + rank * 13) % 101);
  }
  return values;
}

std::vector<float> CollectiveValues::sum() const {
  std::vector<float> total = input_of(0);
  for (std::size_t rank = 1; rank < ranks_; ++rank) {
    const std::vector<float> more = input_of(rank);
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += more[i];
  }
  return total;
}

std::vector<float> CollectiveValues::part_of(const std::vector<float>& whole) const {
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(rank_ * part());
  return {first, first + static_cast<std::ptrdiff_t>(part())};
}

std::vector<float> CollectiveValues::output() const {
  const bool at_root = collective_ == "reduce" || collective_ == "gather";
  if (at_root && rank_ != 0) return {};
  if (collective_ == "reduce") return sum();
  if (collective_ == "reduce_scatter") return part_of(sum());
  if (collective_ == "broadcast") return input_of(0);
  if (collective_ == "scatter") return part_of(input_of(0));
  std::vector<float> all;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const std::vector<float> input = input_of(rank);
    const std::vector<float> more = collective_ == "alltoall" ? part_of(input) : input;
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace tarpon::bench
