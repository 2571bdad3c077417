// Competing traffic on a testbed, which makes queues fill and tails grow.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "tools/namespaces/testbed.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Bulk TCP flows between the first two ranks of a testbed, in alternating directions. Two
/// processes carry them, which end with this object or with the thread that made it. REQUIRES:
/// destroyed before the testbed if the network is to vanish at once.
class BackgroundTraffic {
 public:
  /// Returns when all flows are connected. Errors: invalid_argument (fewer than 2 ranks, flows not
  /// in 1 to 256), timeout, io.
  static Result<BackgroundTraffic> start(const Testbed& testbed, std::uint32_t flows);

  /// Bits per second that all flows together have carried since start(). Errors: unavailable (a
  /// process has ended, so that measurements lacked the requested load).
  Result<double> rate() const;

  BackgroundTraffic(BackgroundTraffic&& other) noexcept;
  BackgroundTraffic& operator=(BackgroundTraffic&& other) noexcept;
  ~BackgroundTraffic();

 private:
  using Received = std::atomic<std::uint64_t>;  // bytes, counted by both processes
  BackgroundTraffic(Received* received, Time started) : received_(received), started_(started) {}

  std::array<int, 2> processes_{-1, -1};
  Received* received_ = nullptr;  // shared with the processes; mapped by this object
  Time started_;
};

}  // namespace tarpon
