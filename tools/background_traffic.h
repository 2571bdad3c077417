// Traffic of others on a testbed: what makes queues fill and tails grow.
#pragma once

#include <array>
#include <cstdint>

#include "tools/testbed.h"
#include "xdp/result.h"

namespace tarpon {

/// Bulk TCP flows between the first two ranks of a testbed, to and fro in turn, by two processes
/// that end with this object or with the thread that made it. REQUIRES: destroyed before the
/// testbed if the network is to vanish at once.
class BackgroundTraffic {
 public:
  /// Returns when all flows are connected. Errors: invalid_argument (fewer than 2 ranks, flows not
  /// in 1 to 256), timeout, io.
  static Result<BackgroundTraffic> start(const Testbed& testbed, std::uint32_t flows);

  /// Whether all flows still run. Errors: unavailable (one has ended: what was measured meanwhile
  /// was not loaded as asked for).
  Result<void> check() const;

  BackgroundTraffic(BackgroundTraffic&& other) noexcept;
  BackgroundTraffic& operator=(BackgroundTraffic&& other) noexcept;
  ~BackgroundTraffic();

 private:
  explicit BackgroundTraffic(std::array<int, 2> processes) : processes_(processes) {}

  std::array<int, 2> processes_{-1, -1};
};

}  // namespace tarpon
