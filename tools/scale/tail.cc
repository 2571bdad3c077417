#include "tools/scale/tail.h"

#include <cmath>

namespace tarpon::scale {
namespace {

/// Uniform in (0, 1].
double uniform(Random& random) {
  return (static_cast<double>(random.next() >> 11) + 1) * 0x1p-53;
}

Duration scaled(Duration duration, double factor) {
  return Duration(std::llround(static_cast<double>(duration.count()) * factor));
}

}  // namespace

Tail::Tail(const TailOptions& options) : options_(options) {
  if (options.tail <= 1) return;
  // P(max D > d) = 1 - (1 - q P(D > d))^8 = 1 %, and P(D > d) = (least / d)^shape.
  const double per_rank = 1 - std::pow(0.99, 1.0 / kReferenceRanks);
  const double share = std::min(1.0, per_rank / options.stragglers);
  least_ = scaled(options.quiet, (options.tail - 1) * std::pow(share, 1 / kEpisodeShape));
}

void Tail::draw(Random& random, std::vector<Episode>& episodes) const {
  for (Episode& episode : episodes) {
    episode = {};
    if (least_ == Duration{} || !random.chance(options_.stragglers)) continue;
    episode.length = scaled(least_, std::pow(uniform(random), -1 / kEpisodeShape));
    episode.late_start = random.chance(0.5);
    if (!episode.late_start) episode.from = scaled(options_.quiet, uniform(random));
  }
}

}  // namespace tarpon::scale
