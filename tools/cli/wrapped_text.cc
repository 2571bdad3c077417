#include "tools/cli/wrapped_text.h"

namespace tarpon {

std::string wrapped(std::string_view line, std::string_view indent, std::size_t width) {
  std::string text;
  std::size_t room = width;  // columns for the rest of `line`: the first line has no indent
  while (line.size() > room) {
    // Blanks at the start of a line are its indent, not a place to break.
    const std::size_t first = line.find_first_not_of(' ');
    std::size_t at = line.rfind(' ', room);
    if (at == std::string_view::npos || at < first) at = line.find(' ', room);
    if (at == std::string_view::npos) break;
    text += line.substr(0, at);
    text += '\n';
    text += indent;
    line.remove_prefix(at + 1);
    room = width - indent.size();
  }
  return text.append(line);
}

}  // namespace tarpon
