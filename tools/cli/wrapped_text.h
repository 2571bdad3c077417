// Lines that fit a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tarpon {

inline constexpr std::size_t kTextWidth = 120;  // columns, of tables and details

/// Breaks `line` at blanks into lines of at most `width` columns, without a newline at the end.
/// Further lines begin with `indent`. A longer word stays whole.
std::string wrapped(std::string_view line, std::string_view indent = "#   ",
                    std::size_t width = kTextWidth);

}  // namespace tarpon
