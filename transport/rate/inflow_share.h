// Which share of a link is ours.
//
// A queue that only we fill delivers the link's rate whatever our window; where others fill it too,
// the rate follows our window. So the window is varied a little, and the change of the rate tells
// our share: with W our bytes in the queue and X those of others, the rate is W / (W + X) of the
// link's, and its elasticity is d ln r / d ln W = X / (W + X), the others' share. Where others come
// and go, their own changes hide that. But then the link has lately been faster, and by that rate
// more bytes wait in its queue than ours (Little's law).
//
// Rates also change by chance, for instance while a processor is busy. Such a change is larger than
// the answer to one step of the window. So share() takes the mean answer to many steps, less two
// standard errors of this mean.
//
// Not thread-safe. No clock inside.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tarpon {

/// The highest of the latest 32 to 64 rates.
class LatelyFastest {
 public:
  void observe(double rate);
  double rate() const { return std::max(now_, before_); }

 private:
  double now_ = 0, before_ = 0;  // of this spell and the one before
  std::uint32_t observed_ = 0;   // in this spell
};

class InflowShare {
 public:
  /// Factor on the window in the next interval.
  double factor() const { return low_ ? kLow : 1; }

  /// Takes an interval that is over, with `window` bytes on their way. Not `steady`: senders
  /// paused, and it says nothing.
  void observe(double window, double bytes_per_second, bool steady);

  /// 0 to 1: the largest share that fits the answers to the latest steps, about a hundred
  /// intervals. 1 until more is known.
  double share() const;

 private:
  struct Settled {
    double window = 0, rate = 0;  // logarithms
  };

  void learn(double step, double answer);
  double others() const { return products_ / squares_; }

  static constexpr double kLow = 0.85;
  static constexpr double kFirst = 0.025;  // ln(kLow) squared: as if one step had been seen

  bool low_ = false;
  bool settled_ = false;  // the factor is that of the interval before
  bool known_ = false;    // `before_` is set
  Settled before_;        // with the other factor
  // Averages over the latest `steps_` steps: step times answer, step squared, error squared.
  double steps_ = 1;
  double products_ = 0, squares_ = kFirst, errors_ = kFirst;
};

}  // namespace tarpon
