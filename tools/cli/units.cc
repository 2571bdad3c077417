#include "tools/cli/units.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <span>

namespace tarpon {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t scale;
};

constexpr Unit kDurations[] = {
    {"h", 3'600'000'000'000}, {"m", 60'000'000'000}, {"s", 1'000'000'000},
    {"ms", 1'000'000},        {"us", 1'000},         {"ns", 1}};
constexpr Unit kRates[] = {{"tbit", 1'000'000'000'000},
                           {"gbit", 1'000'000'000},
                           {"mbit", 1'000'000},
                           {"kbit", 1'000},
                           {"bit", 1}};
constexpr Unit kBytes[] = {{"t", 1ULL << 40}, {"g", 1ULL << 30}, {"m", 1ULL << 20},
                           {"k", 1ULL << 10}, {"b", 1},          {"", 1}};

/// A decimal number, exact: digits x 10^-decimals.
struct Decimal {
  std::uint64_t digits = 0;
  int decimals = 0;
  std::string_view unit;
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

/// Splits "1.5ms". nullopt unless the text begins with a number of at most 19 digits, as many as
/// 2^63 - 1 has.
std::optional<Decimal> split(std::string_view text) {
  Decimal out;
  std::size_t at = 0;
  std::size_t digits = 0;
  bool point = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '.' && !point && digits > 0) {
      point = true;
    } else if (c >= '0' && c <= '9') {
      if (++digits > 19) return std::nullopt;  // 10^19 - 1 is below 2^64
      out.digits = out.digits * 10 + static_cast<std::uint64_t>(c - '0');
      out.decimals += point ? 1 : 0;
    } else {
      break;
    }
  }
  if (digits == 0 || text[at - 1] == '.') return std::nullopt;
  out.unit = text.substr(at);
  return out;
}

/// digits x scale / 10^decimals where that is a whole number below 2^63.
std::optional<std::uint64_t> whole(const Decimal& number, std::uint64_t scale) {
  std::uint64_t digits = number.digits;
  int decimals = number.decimals;
  while (decimals > 0 && digits % 10 == 0) {
    digits /= 10;
    --decimals;
  }
  for (; decimals > 0; --decimals) {
    // Cancel factors of 10 on either side, so that "0.5G" needs no wide arithmetic.
    std::uint64_t factor = 10;
    for (const std::uint64_t prime : {std::uint64_t{2}, std::uint64_t{5}}) {
      if (scale % prime == 0) {
        scale /= prime;
      } else if (digits % prime == 0) {
        digits /= prime;
      } else {
        continue;
      }
      factor /= prime;
    }
    if (factor != 1) return std::nullopt;
  }
  std::uint64_t out = 0;
  if (__builtin_mul_overflow(digits, scale, &out) || out > INT64_MAX) return std::nullopt;
  return out;
}

const Unit* find_unit(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

std::string format_scaled(std::uint64_t value, std::uint64_t scale, std::string_view unit) {
  std::string out = fmt::format("{}", value / scale);
  if (const std::uint64_t rest = value % scale; rest != 0) {
    out += fmt::format(".{:03}", rest / (scale / 1000));
    out.erase(out.find_last_not_of('0') + 1);
  }
  return out.append(unit);
}

tl::unexpected<Error> refuse(std::string_view text, std::string_view why, std::string_view remedy) {
  return fail(Error::Code::invalid_argument, fmt::format("\"{}\" {}: {}", text, why, remedy));
}

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
  const auto number = split(text);
  if (!number) return refuse(text, "is not a duration", "write for example 500ms");
  if (number->unit.empty()) {
    const bool nothing = text.find_first_not_of("0.") == std::string_view::npos;
    return refuse(text, "has no unit",
                  nothing ? "write for example 500ms"
                          : fmt::format("write for example {}ms or {}s", text, text));
  }
  const Unit* unit = find_unit(kDurations, number->unit);
  if (unit == nullptr) {
    return refuse(text, "has no known unit of time",
                  "use ns, us, ms, s, m or h, for example 500ms");
  }
  const auto value = whole(*number, unit->scale);
  if (!value) return refuse(text, "is no whole number of ns below 292 years", "write e.g. 500ms");
  return Duration(static_cast<Duration::rep>(*value));
}

Result<Duration> parse_limit(std::string_view text) {
  auto value = parse_duration(text);
  if (value && *value <= Duration::zero()) {
    return fail(Error::Code::invalid_argument,
                fmt::format("\"{}\" leaves no time: give a duration like 10s", text));
  }
  return value;
}

std::string format_duration(Duration duration) {
  if (duration.count() < 0) return "-" + format_duration(-duration);
  const auto value = static_cast<std::uint64_t>(duration.count());
  // Minutes and hours are read but not written: "90s" is easier to compare than "1.5m".
  for (const Unit& unit : std::span(kDurations).subspan(2)) {
    const bool exact = unit.scale == 1 || value % (unit.scale / 1000) == 0;
    if (value >= unit.scale && exact) return format_scaled(value, unit.scale, unit.name);
  }
  return value == 0 ? "0s" : fmt::format("{}ns", value);
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  const auto number = split(text);
  if (!number) return refuse(text, "is not a size", "write for example 4K, 25M or 1G");
  const Unit* unit = find_unit(kBytes, lower(number->unit));
  if (unit == nullptr)
    return refuse(text, "has no known unit of size", "use K, M, G or T, e.g. 25M");
  const auto value = whole(*number, unit->scale);
  if (!value) return refuse(text, "is no whole number of bytes below 8388608T", "write e.g. 25M");
  return *value;
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::string_view kNames = "TGMK";
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const std::uint64_t scale = kBytes[i].scale;
    if (bytes >= scale && bytes % scale == 0) return fmt::format("{}{}", bytes / scale, kNames[i]);
  }
  return fmt::format("{}", bytes);
}

Result<std::uint64_t> parse_rate(std::string_view text) {
  const auto number = split(text);
  if (!number) return refuse(text, "is not a rate", "write for example 2gbit or 100mbit");
  const std::string name = lower(number->unit);
  if (name.empty()) {
    return refuse(text, "has no unit",
                  fmt::format("write for example {}mbit or {}gbit", text, text));
  }
  if (name.ends_with("bps")) {
    return refuse(text, "is ambiguous",
                  "tc reads bps as bytes per second; write for example 2gbit");
  }
  const Unit* unit = find_unit(kRates, name);
  if (unit == nullptr) {
    return refuse(text, "has no known unit of rate",
                  "use bit, kbit, mbit, gbit or tbit, e.g. 2gbit");
  }
  const auto value = whole(*number, unit->scale);
  if (!value || *value == 0) return refuse(text, "is no usable rate", "write for example 2gbit");
  return *value;
}

std::string format_rate(std::uint64_t bits_per_second) {
  for (const Unit& unit : kRates) {
    if (bits_per_second >= unit.scale && bits_per_second % unit.scale == 0) {
      return fmt::format("{}{}", bits_per_second / unit.scale, unit.name);
    }
  }
  return "0bit";
}

}  // namespace tarpon
