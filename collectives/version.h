// The version of the library.
#pragma once

namespace tarpon {

/// "0.1.0": the project's version in CMake. Ranks of one job need the same one.
extern const char* const kVersion;

}  // namespace tarpon
