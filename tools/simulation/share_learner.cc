#include "tools/simulation/share_learner.h"

#include <algorithm>

namespace tarpon {

ShareLearner::ShareLearner(std::uint64_t seed, std::uint32_t ranks)
    : random_(seed),
      failures_(seed ^ 0x6d6973736573),
      plan_(ranks),
      victim_plan_(ranks),
      speeds_(ranks) {
  draw_speeds();
}

/// Most links have full speed, which they regain when speeds are drawn again. At times a rank
/// begins late.
void ShareLearner::draw_speeds() {
  for (double& speed : speeds_) {
    speed = random_.chance(0.3) ? 0.1 + 0.001 * static_cast<double>(random_.below(900)) : 1;
  }
  late_rank_ = random_.below(speeds_.size());
  lag_ = random_.chance(0.3) ? 0.001 * static_cast<double>(random_.below(2000)) : 0;
}

/// In times of a bucket over a link of full speed (collectives/shares.h).
double ShareLearner::time_with(const Shares& shares) const {
  const auto ranks = static_cast<double>(speeds_.size());
  double longest = 0;
  for (std::size_t rank = 0; rank < speeds_.size(); ++rank) {
    const double part =
        shares.even() ? 1 / ranks
                      : static_cast<double>(shares.part(static_cast<Rank>(rank))) / Shares::kWhole;
    const double lead = rank == late_rank_ ? 0 : lag_;
    const double all = (1 + (ranks - 2) * part) / speeds_[rank] - lead;
    longest = std::max({longest, all, 1 / speeds_[rank]});
  }
  return longest;
}

void ShareLearner::heal() {
  fails_ = false;
  victim_plan_ = plan_;
}

/// The last rank is the victim here: which one it is makes no difference to the rule.
ShareLearner::Drawn ShareLearner::next() {
  const Drawn drawn{plan_.shares(), victim_plan_.shares()};
  if (random_.chance(0.2)) draw_speeds();
  const double time = time_with(drawn.shares);
  std::vector<ShareSample> samples;
  for (std::size_t rank = 0; rank < speeds_.size(); ++rank) {
    const double noise = 0.95 + 0.0001 * static_cast<double>(random_.below(1000));
    samples.push_back({.rate = speeds_[rank] * noise,
                       .time_a_byte = time * noise,
                       .lag_a_byte = rank == late_rank_ ? lag_ * noise : 0,
                       .history = plan_.history()});
  }
  samples.back().history = victim_plan_.history();
  plan_.end_round(samples);
  if (!fails_ || !failures_.chance(0.3)) victim_plan_.end_round(samples);
  return drawn;
}

}  // namespace tarpon
