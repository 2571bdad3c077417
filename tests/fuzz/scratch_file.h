// For targets whose parser reads a file.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "tests/fuzz/fuzz.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::fuzz {

/// The path of a file in memory that holds `data`, until the next call. The file is made once,
/// since that takes longer than a parser.
inline std::string path_of_file(const std::uint8_t* data, std::size_t size) {
  static const FileDescriptor file(::memfd_create("tarpon-fuzz", MFD_CLOEXEC));
  require(static_cast<bool>(file), "memfd_create works");
  require(::ftruncate(file.get(), 0) == 0, "ftruncate works");
  require(::pwrite(file.get(), data, size, 0) == static_cast<ssize_t>(size), "pwrite works");
  return "/proc/self/fd/" + std::to_string(file.get());
}

}  // namespace tarpon::fuzz
