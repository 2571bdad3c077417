// Durations, sizes and rates as users write and read them. The header included below has
// probabilities.
//
// Every parser takes the whole text or refuses it with one line that names the value and shows an
// example; the caller adds the option's name. For every value, parsing what its formatter wrote
// gives the value back. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "collectives/environment/probability.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

/// "500ms", "2s", "30us", "1.5ms", "1m", "250ns", "1h"; not negative. A number without a unit is
/// refused. Fractions below a nanosecond are refused too.
Result<Duration> parse_duration(std::string_view text);

/// The same, above 0: for limits.
Result<Duration> parse_limit(std::string_view text);

/// The largest unit that shows the value exactly with at most three decimals: "1.5ms", "2s".
std::string format_duration(Duration duration);

/// Bytes as nccl-tests reads them: "128", "4K", "25M", "1.5G"; K, M, G, T in either case are powers
/// of 1024. Refuses what is not a whole number of bytes.
Result<std::uint64_t> parse_bytes(std::string_view text);

/// The largest unit that divides the value: "25M", "1000".
std::string format_bytes(std::uint64_t bytes);

/// Bits per second, tc's decimal units: "2gbit", "100mbit", "64kbit", "1500bit". tc's "bps" means
/// bytes per second and is refused, as is a number without a unit.
Result<std::uint64_t> parse_rate(std::string_view text);

/// "2gbit", "1500mbit".
std::string format_rate(std::uint64_t bits_per_second);

}  // namespace tarpon
