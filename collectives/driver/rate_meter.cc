#include "collectives/driver/rate_meter.h"

#include <algorithm>

namespace tarpon {

void RateMeter::Direction::note(std::uint64_t bytes, std::uint64_t window, Time now) {
  if (begun_ && bytes - from_ < window) return;
  if (begun_ && now > since_) {
    const std::chrono::duration<double> took = now - since_;
    rates_[windows_++ % kKept] = static_cast<double>(bytes - from_) / took.count();
  }
  begun_ = true;
  from_ = bytes;
  since_ = now;
}

double RateMeter::Direction::median() const {
  std::array<double, kKept> sorted = rates_;
  const std::size_t count = std::min(windows_, kKept);
  if (count == 0) return 0;
  auto* const middle = sorted.begin() + count / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + count);
  return *middle;
}

void RateMeter::begin(std::uint64_t window) {
  *this = {};
  window_ = window;
}

void RateMeter::note(const PortStatistics& counts, Time now) {
  received_.note(counts.rx_bytes, window_, now);
  sent_.note(counts.tx_bytes, window_, now);
}

double RateMeter::rate() const {
  return std::min(received_.median(), sent_.median());
}

}  // namespace tarpon
