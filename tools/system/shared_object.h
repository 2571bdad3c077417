// What a shared object depends on.
#pragma once

#include <string>
#include <vector>

#include "xdp/base/result.h"

namespace tarpon {

/// The names of the libraries that the ELF file at `path` (64 bits, of this machine's byte order)
/// needs, "libc.so.6". Reads its tables alone, however large it is. Errors: io (cannot be read),
/// invalid_argument (no such file format).
Result<std::vector<std::string>> needed_libraries(const std::string& path);

}  // namespace tarpon
