// "did you mean": which known names are close to a mistyped one. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tarpon::cli {

/// Number of letters to insert, remove or replace, or neighbours to exchange, to turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// At most three names, nearest first: those within a third of the letters of `word`, else those
/// that begin with it (from two letters on, dashes aside). Empty where none is close.
std::vector<std::string> suggestions(std::string_view word, const std::vector<std::string>& known);

/// ": did you mean --mode?", ": did you mean --rate or --rate-of?"; "" where none is close.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace tarpon::cli
