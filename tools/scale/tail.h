// What `--tail R` means: the environment in which R = P99/P50 is measured, as OptiReduce's
// evaluation names its environments (NSDI'25: 1.5 and 3), made of two causes.
//
// Episodes. In each operation each rank has an episode with a small chance (`--stragglers`): it
// sends nothing for a time D. Every second episode is a straggler, which begins the operation D
// late; the others begin at a random moment of the operation (a stalled link, a paused process). D
// is Pareto with shape 2. Its scale is such that an operation that waits for the longest episode of
// kReferenceRanks ranks, T0 + max D, has P99 = R x T0, where T0, the time of a quiet reference
// ring, is also its P50: most operations of 8 ranks have no episode. The chance per rank is the
// same at every rank count, so that more ranks meet more episodes.
//
// Packets. Each packet has an extra delay with a Pareto tail: P50 a quarter of the link's delay,
// P99/P50 = R.
//
// R = 1: neither.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/random.h"
#include "transport/time.h"

namespace tarpon::scale {

inline constexpr std::uint32_t kReferenceRanks = 8;
inline constexpr double kEpisodeShape = 2;

struct TailOptions {
  double tail = 1;            // R, at least 1
  double stragglers = 0.002;  // chance of an episode, per rank and operation
  Duration quiet{};           // T0
};

struct Episode {
  Duration from{};    // after the operation's start
  Duration length{};  // 0: none
  bool late_start = false;

  Duration end() const { return from + length; }
};

class Tail {
 public:
  /// REQUIRES: tail >= 1; stragglers in (0, 1) where tail > 1.
  explicit Tail(const TailOptions& options);

  /// One operation's episodes, by rank.
  void draw(Random& random, std::vector<Episode>& episodes) const;

  /// The shortest D. 0: there are no episodes.
  Duration least() const { return least_; }

 private:
  TailOptions options_;
  Duration least_{};
};

}  // namespace tarpon::scale
