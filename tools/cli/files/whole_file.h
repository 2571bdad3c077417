// A file that appears whole under its name or not at all.
//
// It has no name until it is committed (O_TMPFILE), so that a signal leaves nothing behind. If the
// file system does not support that, it has a temporary name, which a signal may leave behind.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "xdp/base/file_descriptor.h"
#include "xdp/base/output_place.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Collects the content of the file `path`. Without commit() the file stays what it was. Move-only;
/// calls block on the file system.
class WholeFile {
 public:
  /// Opens a file in the directory of `path`, or of the target of a symbolic link, which need not
  /// exist yet. A file that exists keeps its permissions, and its owner where this process may give
  /// files away. A path that is_direct() is opened and written directly. Errors: io, permission; a
  /// symbolic link of another user is refused (xdp/base/output_place.h).
  static Result<WholeFile> create(const std::string& path);

  /// Checks before long work whether create() succeeds. Opens no device and no pipe.
  static Result<void> check(const std::string& path);

  /// Whether `path` is, or links to, something that cannot appear whole: an existing file that is
  /// not regular (a device, a pipe), or any descriptor of a process (/dev/stdout).
  static bool is_direct(const std::string& path);

  WholeFile(WholeFile&& other) noexcept;
  WholeFile& operator=(WholeFile&&) = delete;
  ~WholeFile();

  Result<void> write(std::span<const std::byte> data);

  /// Writes it to stable storage and gives it its name, in one step.
  Result<void> commit();

 private:
  WholeFile(FileDescriptor fd, OutputPlace place, std::string path, bool direct);
  Result<void> name_beside();

  FileDescriptor fd_;
  OutputPlace place_;
  std::string path_;       // for messages
  std::string temporary_;  // until it is committed; mostly empty
  bool direct_;            // there is nothing to commit
};

/// Makes `text` the content of the file `path`. Errors: as WholeFile.
Result<void> write_whole_file(const std::string& path, std::string_view text);

}  // namespace tarpon
