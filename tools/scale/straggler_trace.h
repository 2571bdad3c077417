// Stragglers measured elsewhere, in place of drawn ones: a CSV file of (operation, rank, from,
// length).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/scale/tail.h"
#include "transport/port.h"
#include "xdp/base/result.h"

namespace tarpon::scale {

/// In operation `operation`, counted over operations that count, `rank` sends nothing for
/// `episode.length`, from `episode.from` after the operation's start on. If `episode.from` is 0,
/// the rank begins that much later.
struct StragglerSample {
  std::uint32_t operation = 0;
  Rank rank = kUnknownRank;  // kUnknownRank: every rank
  Episode episode;
};

/// Reads `text`: a line "operation,rank,from_us,length_us", then one line per sample, whole
/// numbers; rank `*`: all. Empty lines are skipped. Errors: invalid_argument, with `name` and the
/// line's number.
Result<std::vector<StragglerSample>> parse_straggler_trace(std::string_view text,
                                                           std::string_view name);

/// The episodes of one operation, by rank. Of two samples for one rank the later one counts. Ranks
/// that do not exist are ignored.
void replay(const std::vector<StragglerSample>& trace, std::uint32_t operation,
            std::vector<Episode>& episodes);

}  // namespace tarpon::scale
