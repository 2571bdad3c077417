// Spreads what is sent over time: a rate, and a burst that may go at once after a pause.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/time.h"

namespace tarpon {

/// No link worth a job is slower. Bytes a second.
inline constexpr double kMinLinkRate = 12.5e6;

class Pacer {
 public:
  /// What may go at once: a train of full datagrams, which costs one system call; at high rates,
  /// what a late wake-up would cost.
  static constexpr double kLeastBurst = 32 << 10;  // bytes
  static constexpr double kLateness = 500e-6;      // seconds

  /// 0: no limit.
  explicit Pacer(double bytes_per_second = 0) { set_rate(bytes_per_second); }

  void set_rate(double bytes_per_second) {
    bytes_per_second_ = bytes_per_second;
    burst_ = std::max(kLeastBurst, kLateness * bytes_per_second);
  }
  double bytes_per_second() const { return bytes_per_second_; }

  /// How many packets of `packet_bytes` may leave now, at most `most`.
  std::size_t allowed(Time now, std::size_t packet_bytes, std::size_t most) const {
    if (bytes_per_second_ <= 0) return most;
    const double seconds = std::chrono::duration<double>(now - idle_at_).count();
    const double bytes = std::min(burst_, burst_ + seconds * bytes_per_second_);
    const auto packets = static_cast<std::int64_t>(bytes / static_cast<double>(packet_bytes));
    return std::min(most, static_cast<std::size_t>(std::max<std::int64_t>(0, packets)));
  }

  void sent(Time now, std::size_t bytes) {
    if (bytes_per_second_ <= 0) return;
    idle_at_ = std::max(idle_at_, now) + time_for(static_cast<double>(bytes));
  }

  /// When half a burst may go: few wake-ups, and the wire does not run dry in between.
  Time next() const { return idle_at_ - time_for(burst_ / 2); }

 private:
  Duration time_for(double bytes) const {
    return Duration(static_cast<std::int64_t>(1e9 * bytes / bytes_per_second_));
  }

  double bytes_per_second_ = 0;
  double burst_ = kLeastBurst;
  Time idle_at_{};  // when all that was sent has had its time
};

}  // namespace tarpon
