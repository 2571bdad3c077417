// Turns texts of a part of a job, which number ranks within that part, into texts of the job.
#pragma once

#include <string>
#include <vector>

#include "transport/rank.h"

namespace tarpon::grid {

/// `text` with the numbers behind "rank" and "ranks" exchanged: rank r becomes ranks[r]. In a list
/// ("ranks 1, 2 and 3", "ranks 1, 2 and 40 more") all ranks are; counts stay.
std::string global_text(const std::string& text, const std::vector<Rank>& ranks);

/// `part` with each rank r exchanged for ranks[r], in rising order.
std::vector<Rank> global_ranks(const std::vector<Rank>& part, const std::vector<Rank>& ranks);

}  // namespace tarpon::grid
