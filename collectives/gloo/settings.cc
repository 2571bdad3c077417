#include "collectives/gloo/settings.h"

#include <charconv>
#include <cmath>
#include <span>
#include <string_view>

namespace tarpon::gloo_shim {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kTimes[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}};
constexpr Unit kSizes[] = {{"", 1}, {"B", 1}, {"K", 1024}, {"M", 1 << 20}, {"G", 1 << 30}};

// Both fit 64 bits, with room.
constexpr double kMost = 1e15;

constexpr char kNoDuration[] = "not a duration above 0; write for example 50ms or 10s";

/// A number with a unit, such as "50ms".
std::optional<std::int64_t> parse(std::string_view text, std::span<const Unit> units) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || value < 0) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const Unit& one : units) {
    if (one.name != unit) continue;
    const double scaled = value * one.factor;
    if (!(scaled <= kMost)) return std::nullopt;
    return static_cast<std::int64_t>(std::llround(scaled));
  }
  return std::nullopt;
}

std::string wrong(const char* name, const std::string& value, const char* remedy) {
  return std::string(name) + "=" + value + ": " + remedy;
}

}  // namespace

std::variant<Settings, std::string> read_settings(const Environment& environment) {
  Settings settings;
  if (const auto mode = environment("TARPON_MODE")) {
    if (*mode != "exact" && *mode != "bounded") {
      return wrong("TARPON_MODE", *mode, "use exact or bounded");
    }
    settings.bounded = *mode == "bounded";
  }
  if (const auto size = environment("TARPON_BOUNDED_MIN")) {
    const auto bytes = parse(*size, kSizes);
    if (!bytes) return wrong("TARPON_BOUNDED_MIN", *size, "not a size; write for example 1M");
    settings.bounded_min = static_cast<std::uint64_t>(*bytes);
  }
  if (const auto bound = environment("TARPON_BOUND")) {
    const auto time = parse(*bound, kTimes);
    if (!time || *time == 0) return wrong("TARPON_BOUND", *bound, kNoDuration);
    settings.bound_us = *time;
  }
  if (const auto deadline = environment("TARPON_DEADLINE")) {
    const auto time = parse(*deadline, kTimes);
    if (!time || *time == 0) return wrong("TARPON_DEADLINE", *deadline, kNoDuration);
    settings.deadline_us = *time;
  }
  if (const auto required = environment("TARPON_REQUIRE")) {
    if (*required != "0" && *required != "1") {
      return wrong("TARPON_REQUIRE", *required, "use 1, or 0");
    }
  }
  const std::string debug = environment("TARPON_DEBUG").value_or("");
  settings.told = debug == "INFO" || debug == "TRACE";
  return settings;
}

bool requires_tarpon(const Environment& environment) {
  const auto required = environment("TARPON_REQUIRE");
  if (required) return *required != "0";
  const auto integrity = environment("TARPON_INTEGRITY");
  return environment("TARPON_SECRET_FILE") || environment("TARPON_SECRET_FD") ||
         environment("TARPON_SECRET_FROM_STORE") == "1" || integrity == "keyed" ||
         integrity == "sealed";
}

const char* mode_name(const Settings& settings) {
  return settings.bounded ? "bounded" : "exact";
}

}  // namespace tarpon::gloo_shim
