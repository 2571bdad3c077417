#pragma once

#include <cstdint>

#include "transport/operation_spec.h"

namespace tarpon {

/// Hash of a signature that rides in every header: CRC-16/IBM-3740.
std::uint16_t signature_hash(const Signature& signature);

}  // namespace tarpon
