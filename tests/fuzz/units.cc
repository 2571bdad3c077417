// Durations, sizes, rates and probabilities of the command line.
#include "tools/cli/units.h"

#include <cmath>

#include "tests/fuzz/fuzz.h"

using namespace tarpon;
using fuzz::require;

namespace {

template <typename Value, typename Parse, typename Format>
void round_trip(const Result<Value>& value, Parse parse, Format format) {
  if (!value) {
    require(!value.error().message.empty(), "a refusal says why");
    return;
  }
  const auto again = parse(format(*value));
  require(again && *again == *value, "parsing what was formatted gives the value back");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const auto duration = parse_duration(text);
  require(!duration || *duration >= Duration::zero(), "a duration is not negative");
  round_trip(duration, parse_duration, format_duration);
  round_trip(parse_bytes(text), parse_bytes, format_bytes);
  round_trip(parse_rate(text), parse_rate, format_rate);
  const auto probability = parse_probability(text);
  require(!probability || (*probability >= 0 && *probability <= 1), "a probability is in [0, 1]");
  // Values that no text names.
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(size, 8); ++i) any = any << 8 | data[i];
  const auto positive = static_cast<std::int64_t>(any >> 1);
  round_trip(Result<Duration>(Duration(positive)), parse_duration, format_duration);
  round_trip(Result<std::uint64_t>(any >> 1), parse_bytes, format_bytes);
  if (any > 1) round_trip(Result<std::uint64_t>(any >> 1), parse_rate, format_rate);
  return 0;
}
