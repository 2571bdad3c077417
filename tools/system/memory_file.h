// Files without a name or a place on disk: what a child process reads or writes, whatever its size.
#pragma once

#include <string>

#include "xdp/file_descriptor.h"
#include "xdp/result.h"

namespace tarpon {

/// Empty, closed on exec; what is written goes to its end, also when several processes write at
/// once. The caller owns it. An empty descriptor, with errno, when the kernel gives none.
FileDescriptor make_memory_file();

/// All of it, wherever its offset is; also while somebody still writes. Errors: io.
Result<std::string> memory_file_content(const FileDescriptor& file);

}  // namespace tarpon
