// Where an output file goes: its directory, opened, and its name there.
//
// A path is walked component by component, each opened relative to the one before, so that what has
// been checked is what is used. Symbolic links that a stranger may have planted are refused, as the
// kernel does with fs.protected_symlinks, but regardless of that setting:
// - A link that is the file itself must belong to the user of this process or to root.
// - A link to a directory on the way may also belong to the owner of the directory that holds it,
//   unless that one is sticky and writable by all, as /tmp is.
// Links in procfs are the kernel's, and are followed.
#pragma once

#include <cstdio>
#include <string>

#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon {

struct OutputPlace {
  FileDescriptor directory;  // O_PATH: for openat(), linkat(), renameat()
  std::string name;          // not a symbolic link when it was checked, except in procfs
  bool in_proc = false;      // the directory is in procfs; `name` may be a link, say to a pipe
};

/// Finds the place of `path`, after the symbolic links that may be followed; the file need not
/// exist. Errors: permission (a stranger's link, named in the message), io.
Result<OutputPlace> find_output_place(const std::string& path);

/// Opens the file at `place` with `flags`, or creates it when they include O_CREAT. Adds O_CLOEXEC,
/// and O_NOFOLLOW outside of procfs. A stranger's device or pipe in a directory that is sticky and
/// writable by all is refused as well. `path`: for messages. Errors: permission, io.
Result<FileDescriptor> open_at(const OutputPlace& place, const std::string& path, int flags);

/// Opens the file `path` with fopen()'s mode "w" or "a", close-on-exec; the caller closes it.
/// Errors: permission, io; they begin with the path.
Result<std::FILE*> open_stream(const std::string& path, const char* mode);

/// Opens the directory `path` (O_PATH), by the same rules. Errors: as above.
Result<FileDescriptor> open_output_directory(const std::string& path);

}  // namespace tarpon
