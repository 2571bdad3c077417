// Files without a name or a place on disk, for input and output of child processes of any size.
#pragma once

#include <string>

#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Makes an empty file, closed on exec. Writes go to its end, also when several processes write at
/// once. The caller owns it. Returns an empty descriptor, with errno, if the kernel refuses.
FileDescriptor make_memory_file();

/// The whole content, wherever the file's offset is; also while a process still writes. Errors: io.
Result<std::string> memory_file_content(const FileDescriptor& file);

}  // namespace tarpon
