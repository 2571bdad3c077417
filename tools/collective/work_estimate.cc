#include "tools/collective/work_estimate.h"

#include <algorithm>
#include <utility>

namespace tarpon {
namespace {

constexpr double kQuiet = 3;  // seconds
// Beyond this factor above the largest size that was seen, time per byte is a guess.
constexpr double kReach = 16;
// Below this size latency dominates and says nothing about larger sizes.
constexpr std::uint64_t kLarge = 4 << 20;

}  // namespace

WorkEstimate::WorkEstimate(std::vector<std::uint64_t> sizes, std::uint32_t steps)
    : sizes_(std::move(sizes)), steps_(std::max(1u, steps)) {}

void WorkEstimate::update(std::uint32_t done, double now) {
  if (item_ >= sizes_.size() || done == 0) return;
  now_ = now;
  current_ = (now - begin_) / std::min(done, steps_) * steps_ * overhead_;
  known_[sizes_[item_]] = current_;
}

void WorkEstimate::finish_item(double now) {
  if (item_ >= sizes_.size()) return;
  const double steps = now_ - begin_;
  if (steps > 0) overhead_ = std::min((now - begin_) / steps, 10.0);
  known_[sizes_[item_]] = now - begin_;
  begin_ = now_ = now;
  current_ = 0;
  ++item_;
}

std::optional<double> WorkEstimate::predict(std::uint64_t size) const {
  if (known_.empty()) return std::nullopt;
  const auto above = known_.lower_bound(size);
  if (above != known_.end()) return above->second;  // close enough: sizes mostly rise
  const std::uint64_t largest = known_.rbegin()->first;
  const double factor =
      static_cast<double>(size) / static_cast<double>(std::max<std::uint64_t>(1, largest));
  if (largest < kLarge || factor > kReach) return std::nullopt;
  // Time per byte of the larger sizes, which latency does not dominate; averaged, as times vary.
  double bytes = 0;
  double time = 0;
  for (auto at = known_.lower_bound(largest / 4); at != known_.end(); ++at) {
    bytes += static_cast<double>(at->first);
    time += at->second;
  }
  return time / bytes * static_cast<double>(size);
}

std::optional<double> WorkEstimate::left() const {
  if (now_ < kQuiet || current_ == 0) return std::nullopt;
  double left = std::max(0.0, current_ - (now_ - begin_));
  for (std::size_t i = item_ + 1; i < sizes_.size(); ++i) {
    const auto seconds = predict(sizes_[i]);
    if (!seconds) return std::nullopt;
    left += *seconds;
  }
  return left;
}

}  // namespace tarpon
