// Environment variables as an argument, so that code which reads them can be tested.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace tarpon {

/// The value of a variable, or nullopt when it is unset or empty: launchers treat both alike.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// The environment of this process. As with getenv(), no other thread may change it meanwhile.
inline Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

/// No variable is set.
inline Environment empty_environment() {
  return [](const char*) { return std::optional<std::string>(); };
}

}  // namespace tarpon
