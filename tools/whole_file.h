// A file that appears whole under its name or not at all.
//
// It has no name until it is committed (O_TMPFILE), so that a signal leaves nothing either. Where
// the file system cannot do that it has a temporary one, which a signal may leave behind.
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
  /// Opens a file in the directory of `path`, or of the target of a symbolic link, which need not
  /// exist yet. What is_direct() is opened and written directly. Errors: io, permission.
  static Result<WholeFile> create(const std::string& path);

  /// Whether create() works, to be known before long work. Opens no device and no pipe.
  static Result<void> check(const std::string& path);

  /// Whether `path` is, or links to, what cannot appear whole: something that exists and is no
  /// regular file (a device, a pipe), or a descriptor of a process (/dev/stdout), whatever it is.
  static bool is_direct(const std::string& path);

  WholeFile(WholeFile&& other) noexcept;
  WholeFile& operator=(WholeFile&&) = delete;
  ~WholeFile();

  Result<void> write(std::span<const std::byte> data);

  /// Puts it on stable storage and under its name, in one step.
  Result<void> commit();

 private:
  WholeFile(int fd, std::string path, std::string temporary, bool direct);
  Result<void> name_beside();

  FileDescriptor fd_;
  std::string path_;
  std::string temporary_;  // its name until it is committed; mostly none
  bool direct_;            // there is nothing to commit
};

}  // namespace tarpon
