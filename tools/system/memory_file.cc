#include "tools/system/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace tarpon {

FileDescriptor make_memory_file() {
  FileDescriptor file(::memfd_create("tarpon", MFD_CLOEXEC));
  // Several processes write to one file. The kernel takes no lock on a memfd's shared position, so
  // two simultaneous writes could overwrite one another.
  if (!file || ::fcntl(file.get(), F_SETFL, O_APPEND) != 0) return {};
  return file;
}

Result<std::string> memory_file_content(const FileDescriptor& file) {
  std::string out;
  std::array<char, 16 << 10> buffer{};
  for (;;) {
    const ssize_t got =
        ::pread(file.get(), buffer.data(), buffer.size(), static_cast<off_t>(out.size()));
    if (got < 0) return fail_system(errno, "cannot read a command's output");
    if (got == 0) return out;
    out.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace tarpon
