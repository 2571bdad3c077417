// One line on standard error for each error that a user has to know.
#pragma once

#include <string>
#include <string_view>

#include "transport/port.h"

namespace tarpon {

/// Prints errors as "tarpon: MESSAGE", in red on a terminal. A value without resources.
///
/// Local ranks use it as it is: their parent names the ranks (tools/line_merger.h). A rank of a
/// launcher, which mixes the standard error of all ranks, is given its number here.
class Voice {
 public:
  Voice() = default;
  explicit Voice(Rank rank);

  /// A message that begins with "rank N: " keeps that as its only beginning.
  void error(std::string_view message) const;

 private:
  std::string speaker_ = "tarpon";
};

/// Whether `text` begins with "rank N: ", or with the names of several ranks.
bool names_a_rank(std::string_view text);

}  // namespace tarpon
