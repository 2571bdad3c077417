// When an endpoint has to run its timers next. Parts of it move that time forward; only the
// endpoint, which has run them, moves it back.
//
// A value. No clock inside.
#pragma once

#include <algorithm>

#include "transport/time.h"

namespace tarpon {

class Alarm {
 public:
  /// kNever: only packets matter.
  Time at() const { return at_; }
  /// Something is due at `time`.
  void no_later_than(Time time) { at_ = std::min(at_, time); }
  /// Timers have run: the next thing is due at `time`.
  void reset(Time time = kNever) { at_ = time; }

 private:
  Time at_ = kNever;
};

}  // namespace tarpon
