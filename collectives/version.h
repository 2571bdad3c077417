// The version of the library.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

namespace tarpon {

/// "0.2.0": the project's version in CMake. Ranks of one job need the same one.
extern const char* const kVersion;

}  // namespace tarpon
