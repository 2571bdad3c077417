// One line on standard error for each error that a user has to know.
#pragma once

#include <optional>
#include <string_view>

#include "collectives/environment.h"
#include "transport/port.h"

namespace tarpon {

/// Prints errors as "tarpon: MESSAGE", in red on a terminal. A value without resources.
///
/// Local ranks use it as it is: their parent names the ranks (tools/job/line_merger.h). A rank of a
/// launcher, which mixes the standard error of all ranks, is given its number here.
class Voice {
 public:
  Voice() = default;
  explicit Voice(Rank rank);

  /// Before the place of this process is known by its options: that of a rank of a launcher, where
  /// the variables say so.
  static Voice of_launcher(const Environment& environment);

  /// A message that begins with the names of ranks has been agreed on: all ranks know it. Among the
  /// ranks of a launcher the first one that it names prints it, the others stay silent.
  void error(std::string_view message) const;

 private:
  std::optional<Rank> rank_;
};

/// The first rank where `text` begins with names: 2 of "rank 2: ", 0 of "ranks 0, 3: ".
std::optional<Rank> first_named_rank(std::string_view text);

}  // namespace tarpon
