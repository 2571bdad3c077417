#include "tools/cli/colour.h"

#include <fmt/format.h>
#include <unistd.h>

namespace tarpon {

Colour::Colour(int fd, const Environment& environment)
    : on_(::isatty(fd) == 1 && !environment("NO_COLOR") && environment("TERM") != "dumb") {}

std::string Colour::failure(std::string_view text) const {
  return on_ ? fmt::format("\033[31m{}\033[0m", text) : std::string(text);
}

}  // namespace tarpon
