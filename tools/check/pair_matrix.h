// A figure of every pair of ranks as a table for people.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/check/pair_probe.h"
#include "tools/cli/colour.h"

namespace tarpon {

/// A row for each rank that sends, a column for each that receives; "-" where there is no pair.
/// More than 12 receiving ranks are shown in blocks below one another, so that lines have at most
/// 120 columns. Pairs that do not work are coloured as failures.
std::string pair_matrix(const std::vector<PairProbe>& pairs, std::uint32_t world,
                        const std::function<std::string(const PairProbe&)>& cell,
                        const Colour& colour);

}  // namespace tarpon
