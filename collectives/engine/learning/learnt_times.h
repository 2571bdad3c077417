// What the calls of a communicator teach about their times. Its Engine owns it.
//
// Not thread-safe. No clock inside.
#pragma once

#include "collectives/engine/learning/bounds.h"
#include "collectives/engine/learning/work_rate.h"

namespace tarpon {

struct LearntTimes {
  explicit LearntTimes(const BoundsOptions& options) : bounds(options) {}

  Bounds bounds;
  WorkRate uncoded_work;  // on the buffers of a call after its last stage
  WorkRate coded_work;    // the same of coded calls
};

}  // namespace tarpon
