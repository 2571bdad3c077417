#include "tools/cli/colour.h"

#include <fmt/format.h>
#include <unistd.h>

namespace tarpon {

bool takes_control_sequences(int fd, const Environment& environment) {
  return ::isatty(fd) == 1 && environment("TERM") != "dumb";
}

Colour::Colour(int fd, const Environment& environment)
    : on_(takes_control_sequences(fd, environment) && !environment("NO_COLOR")) {}

std::string Colour::failure(std::string_view text) const {
  return on_ ? fmt::format("\033[31m{}\033[0m", text) : std::string(text);
}

}  // namespace tarpon
