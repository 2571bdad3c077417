// What the environment asks of the shim. Alike on all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "collectives/environment/environment.h"

namespace tarpon::gloo_shim {

struct Settings {
  bool bounded = false;                    // TARPON_MODE=exact|bounded
  std::uint64_t bounded_min = 1ull << 20;  // TARPON_BOUNDED_MIN=1M: calls of up to that are exact
  std::int64_t bound_us = 0;               // TARPON_BOUND=50ms; 0: learnt
  std::int64_t deadline_us = 10'000'000;   // TARPON_DEADLINE=10s: hard limit of bounded calls
  bool told = false;                       // TARPON_DEBUG=INFO, TRACE: a line at exit
};

/// Whether nothing goes on without Tarpon: TARPON_REQUIRE=1; or a variable names a secret or asks
/// for packets that need one, which Gloo has not, and TARPON_REQUIRE=0 does not permit to go on.
bool requires_tarpon(const Environment& environment);

/// The settings, or one line that names a variable, its value and the remedy.
std::variant<Settings, std::string> read_settings(const Environment& environment);

/// "exact", or "bounded".
const char* mode_name(const Settings& settings);

}  // namespace tarpon::gloo_shim
