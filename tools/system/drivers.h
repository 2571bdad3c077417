// Facts about network drivers that the kernel does not tell.
#pragma once

#include <string_view>

namespace tarpon {

enum class AttachEffect { nothing, queues, link };

/// What attaching an XDP program does to an interface of this driver.
struct DriverNotes {
  AttachEffect effect = AttachEffect::queues;
  std::string_view text;  // "resets its queues: ..."
  /// Native XDP works only if at most half of the channels are in use.
  bool half_of_channels = false;
};

/// The notes of `driver`; for an unknown driver the worst that is usual. Pure.
DriverNotes driver_notes(std::string_view driver);

}  // namespace tarpon
