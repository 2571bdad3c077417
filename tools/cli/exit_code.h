// How a command ends.
#pragma once

#include "tools/cli/voice.h"
#include "xdp/base/result.h"

namespace tarpon {

inline constexpr int kFailed = 1;  // or results are wrong
inline constexpr int kUsage = 2;
inline constexpr int kHalted = 3;    // by a loss budget
inline constexpr int kNotRun = 127;  // by a rank whose program was not found, as in a shell

/// Prints the error. Returns kUsage if the user asked for something impossible, else kFailed.
int report(const Error& error, const Voice& voice = {});

/// Flushes standard output, at the end of a process or of a local rank. Returns `code`; prints an
/// error if some of the output was lost, and then returns kFailed in place of 0.
int with_output_written(int code);

}  // namespace tarpon
