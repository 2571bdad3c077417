#include "collectives/environment/probability.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace tarpon {
namespace {

tl::unexpected<Error> refuse(std::string_view text, std::string_view why) {
  return fail(Error::Code::invalid_argument,
              fmt::format("\"{}\" {}: write for example 1%", text, why));
}

}  // namespace

Result<double> parse_probability(std::string_view text) {
  const bool percent = text.ends_with('%');
  const std::string_view digits = percent ? text.substr(0, text.size() - 1) : text;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value,
                                            std::chars_format::general);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value)) {
    return refuse(text, "is not a percentage");
  }
  if (!percent && value != 0) {
    return refuse(text, "has no unit, and a percentage is meant");
  }
  if (value < 0 || value > 100) {
    return refuse(text, "is outside 0% to 100%");
  }
  return value / 100;
}

}  // namespace tarpon
