// Kinds of options that CLI11 lacks, for those who declare options.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>

#include "xdp/result.h"

namespace tarpon {

/// Adds an option whose text goes through `parse` (a Result-returning function).
template <typename T, typename Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, T& target, Parse parse,
                        const std::string& description) {
  return app.add_option_function<std::string>(
      name,
      [&target, parse, name](const std::string& text) {
        auto value = parse(text);
        if (!value) throw CLI::ValidationError(name, value.error().message);
        target = *value;
      },
      description);
}

/// Adds an option with a few named values, in lower or upper case.
template <typename Target, typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Target& target,
                        const std::map<std::string, T>& choices, const std::string& description) {
  const auto choose = [&target, choices, name](const std::string& text) {
    const auto found = choices.find(CLI::detail::to_lower(text));
    if (found == choices.end()) {
      std::string known;
      for (const auto& [word, value] : choices) known += (known.empty() ? "" : ", ") + word;
      throw CLI::ValidationError(name, '"' + text + "\" is not one of " + known);
    }
    target = found->second;
  };
  return app.add_option_function<std::string>(name, choose, description)->type_name("");
}

/// For counts of which 0 makes no sense.
inline CLI::Range at_least_one() {
  return {1u, UINT32_MAX};
}

/// From 0 to `most`: CLI11 takes -1 for an unsigned option of 64 bits, and wraps it.
CLI::Validator whole_number(std::uint64_t most);

}  // namespace tarpon
