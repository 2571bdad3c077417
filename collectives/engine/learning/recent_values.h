// The latest values of a series, at most a fixed number of them.
//
// Not thread-safe. Allocates until it is full, and not afterwards.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace tarpon {

class RecentValues {
 public:
  /// REQUIRES: capacity > 0.
  explicit RecentValues(std::size_t capacity) : capacity_(capacity) {}

  /// Adds `value`. Returns the oldest value if `value` takes its place.
  std::optional<double> push(double value) {
    if (values_.size() < capacity_) {
      values_.push_back(value);
      return std::nullopt;
    }
    const double oldest = values_[next_];
    values_[next_] = value;
    next_ = (next_ + 1) % capacity_;
    return oldest;
  }

  void clear() {
    values_.clear();
    next_ = 0;
  }

  std::size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  /// In no particular order.
  std::span<const double> values() const { return values_; }

  /// The smallest value that is not below a share `q` of all. REQUIRES: !empty(), 0 <= q <= 1.
  double quantile(double q) const {
    std::vector<double> sorted = values_;
    const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size())));
    const auto at =
        sorted.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
    std::nth_element(sorted.begin(), at, sorted.end());
    return *at;
  }

 private:
  std::size_t capacity_;
  std::vector<double> values_;
  std::size_t next_ = 0;  // the oldest value, once full
};

}  // namespace tarpon
