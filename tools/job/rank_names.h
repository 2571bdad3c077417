// Ranks in texts for people.
#pragma once

#include <string>
#include <vector>

#include "transport/port.h"

namespace tarpon {

/// "rank 2", "ranks 0-2, 5". REQUIRES: rising, not empty.
std::string rank_names(const std::vector<Rank>& ranks);

/// "1 rank", "4 ranks".
std::string rank_count(std::size_t ranks);

}  // namespace tarpon
