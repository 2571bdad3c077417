// A small text file as a string.
#pragma once

#include <string>

#include "xdp/base/result.h"

namespace tarpon {

/// Reads the whole of `path`. Errors: io, with the path; invalid_argument above 64 MiB.
Result<std::string> read_text(const std::string& path);

}  // namespace tarpon
