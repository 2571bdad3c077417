#include "collectives/version.h"

namespace tarpon {

const char* const kVersion = TARPON_VERSION;

}  // namespace tarpon
