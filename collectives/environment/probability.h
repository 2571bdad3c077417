// Probabilities and shares as users write them.
#pragma once

#include <string_view>

#include "xdp/base/result.h"

namespace tarpon {

/// Parses a percentage, "1%" or "0.25%", into a value in [0, 1]. Refuses a number without %, except
/// "0". Takes the whole text or refuses it with one line that names the value and shows an example;
/// the caller adds the name of the option. Pure.
Result<double> parse_probability(std::string_view text);

}  // namespace tarpon
