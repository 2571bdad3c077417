// A file that appears whole under its name or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "xdp/file_descriptor.h"
#include "xdp/result.h"

namespace tarpon {

/// Collects what is to become the file `path`. Whoever does not get to commit() leaves what was
/// there before. Move-only; calls block on the file system.
class WholeFile {
 public:
  /// Opens a temporary file beside `path`, or beside the target of a symbolic link. What exists and
  /// is no regular file (a device, a pipe) is opened and written directly. Errors: io, permission.
  static Result<WholeFile> create(const std::string& path);

  /// Whether create() works, to be known before long work. Opens no device and no pipe.
  static Result<void> check(const std::string& path);

  WholeFile(WholeFile&& other) noexcept;
  WholeFile& operator=(WholeFile&&) = delete;
  ~WholeFile();

  Result<void> write(std::span<const std::byte> data);

  /// Puts it on stable storage and under its name, in one step.
  Result<void> commit();

 private:
  WholeFile(int fd, std::string path, std::string temporary);

  FileDescriptor fd_;
  std::string path_;
  std::string temporary_;  // empty once committed, and for what is no regular file
};

}  // namespace tarpon
