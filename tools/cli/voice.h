// One line on standard error for each error, and other news, that a user has to know.
#pragma once

#include <optional>
#include <string_view>

#include "collectives/environment/environment.h"
#include "transport/port.h"

namespace tarpon {

/// Prints errors as "tarpon: MESSAGE", in red on a terminal. A value without resources.
///
/// Local ranks use it without a rank: their parent names the ranks (tools/job/line_merger.h). A
/// rank under a launcher gets its number here, since the launcher mixes the standard error of all
/// ranks.
class Voice {
 public:
  Voice() = default;
  explicit Voice(Rank rank);

  /// For use before the options tell the place of this process: the voice of a rank under a
  /// launcher, if the variables say so.
  static Voice of_launcher(const Environment& environment);

  /// Prints `message`. If it begins with the names of ranks, all ranks have agreed on it and know
  /// it: among the ranks of a launcher only the first named one prints it.
  void error(std::string_view message) const;

  /// Prints `message` as news that is no error.
  void note(std::string_view message) const;

 private:
  std::optional<Rank> rank_;
};

/// The first rank if `text` begins with names: 2 of "rank 2: ", 0 of "ranks 0, 3: ".
std::optional<Rank> first_named_rank(std::string_view text);

}  // namespace tarpon
