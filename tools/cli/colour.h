// Red for what failed, on a terminal.
#pragma once

#include <string>
#include <string_view>

#include "collectives/environment/environment.h"

namespace tarpon {

/// Whether `fd` is a terminal that understands control sequences: TERM is not "dumb".
bool takes_control_sequences(int fd, const Environment& environment);

/// Colours text, or leaves it as it is. A value: copies behave alike.
class Colour {
 public:
  /// Colours only where `fd` takes_control_sequences(), and NO_COLOR is unset or empty.
  Colour(int fd, const Environment& environment);

  /// `text` in red: for an error, or a figure that fails a run.
  std::string failure(std::string_view text) const;

 private:
  bool on_;
};

}  // namespace tarpon
