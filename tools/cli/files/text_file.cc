#include "tools/cli/files/text_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>

namespace tarpon {

Result<std::string> read_text(const std::string& path) {
  constexpr std::size_t kMost = 64 << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_system(errno, "cannot read " + path);
  std::string text;
  for (char piece[1 << 16]; file.read(piece, sizeof piece) || file.gcount() > 0;) {
    text.append(piece, static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMost) {
      return fail(Error::Code::invalid_argument,
                  fmt::format("{} is longer than 64 MiB: a trace is meant", path));
    }
  }
  if (file.bad()) return fail_system(EIO, "cannot read " + path);
  return text;
}

}  // namespace tarpon
