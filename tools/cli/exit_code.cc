#include "tools/cli/exit_code.h"

namespace tarpon {

int report(const Error& error, const Voice& voice) {
  voice.error(error.message);
  return error.code == Error::Code::invalid_argument ? kUsage : kFailed;
}

}  // namespace tarpon
