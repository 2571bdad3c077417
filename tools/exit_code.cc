#include "tools/exit_code.h"

#include <fmt/format.h>

namespace tarpon {

int report(const Error& error) {
  fmt::print(stderr, "tarpon: {}\n", error.message);
  return error.code == Error::Code::invalid_argument ? kUsage : kFailed;
}

}  // namespace tarpon
