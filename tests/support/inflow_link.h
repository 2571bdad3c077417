// A computed link for tests of the rules of inflow. It queues packets that come too fast, or drops
// them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/random.h"
#include "transport/rate/inflow.h"

namespace tarpon {

inline constexpr std::uint64_t kPacket = 1500;  // bytes

/// Rounds of a window each over one link.
struct InflowLink {
  double bytes_per_second = 250e6;
  double queue_bytes = 400e3;  // 0: a policer with `burst_bytes`
  double burst_bytes = 128e3;
  double own_loss = 0;
  double others = 0;  // bytes in the queue, always
  Duration base = 100us;

  Random random{1};
  Time now{};
  double tokens = 0, rest = 0;
  std::uint64_t sent = 0, lost = 0, delivered_bytes = 0;

  /// The rate at which `inflow` paces credit; 0: it does not.
  template <typename Rule>
  static double pace_of(const Rule& inflow) {
    if constexpr (requires { inflow.pace(); }) return inflow.pace().bytes_per_second();
    return 0;
  }

  template <typename Rule>
  void round(Rule& inflow) {
    double flight = static_cast<double>(inflow.window());
    double pause = std::chrono::duration<double>(base).count();
    if (inflow.paced()) {
      pause = 1e-3;
      flight = pace_of(inflow) * pause + rest;
    }
    const auto packets = static_cast<std::uint64_t>(flight) / kPacket;
    rest = flight - static_cast<double>(packets * kPacket);
    double fits = 0;
    const bool waits = queue_bytes > 0 && flight + others > bytes_per_second * pause;
    if (queue_bytes > 0) {
      fits = queue_bytes + bytes_per_second * pause - others;
      pause = std::max(pause, (std::min(flight, fits) + others) / bytes_per_second);
    } else {
      tokens = std::min(burst_bytes, tokens + bytes_per_second * pause);
      fits = tokens;
    }
    for (std::uint64_t i = 0; i < packets; ++i) {
      ++sent;
      const bool dropped = static_cast<double>((i + 1) * kPacket) > fits;
      if (dropped || random.chance(own_loss)) {
        ++lost;
        inflow.overtaken(1, 0);
        continue;
      }
      if (queue_bytes <= 0) tokens -= kPacket;
      delivered_bytes += kPacket;
      inflow.arrived(kPacket, false);
    }
    now += Duration(static_cast<std::int64_t>(pause * 1e9));
    // The first packet waits for none of ours, the last one for all.
    inflow.round_trip(base + Duration(static_cast<std::int64_t>(others / bytes_per_second * 1e9)));
    inflow.round_trip(waits ? Duration(static_cast<std::int64_t>(pause * 1e9)) : base);
    inflow.judge(now);
  }

  template <typename Rule>
  void run(Rule& inflow, Duration time) {
    for (const Time end = now + time; now < end;) round(inflow);
  }

  void forget() { sent = lost = delivered_bytes = 0; }
  double lost_share() const { return static_cast<double>(lost) / static_cast<double>(sent); }
};

}  // namespace tarpon
