// What is known of network drivers and cannot be asked from the kernel.
#pragma once

#include <string_view>

namespace tarpon {

enum class AttachEffect { nothing, queues, link };

/// What attaching an XDP program does to an interface of this driver.
struct DriverNotes {
  AttachEffect effect = AttachEffect::queues;
  std::string_view text;  // "resets its queues: ..."
  /// Native XDP only with at most half of the channels in use.
  bool half_of_channels = false;
};

/// Of an unknown driver the worst that is usual. Pure.
DriverNotes driver_notes(std::string_view driver);

}  // namespace tarpon
