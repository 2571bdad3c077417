#include "tools/cli/exit_code.h"

#include <cstdio>

namespace tarpon {

int report(const Error& error, const Voice& voice) {
  voice.error(error.message);
  return error.code == Error::Code::invalid_argument ? kUsage : kFailed;
}

int with_output_written(int code) {
  // An earlier flush may have failed: then this one succeeds, because its text is gone.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  Voice().error("not all of the output could be written to standard output");
  return code == 0 ? kFailed : code;
}

}  // namespace tarpon
