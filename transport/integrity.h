// CRC32C over header and payload, for jobs whose datapath has no checksum of its own.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstddef>
#include <cstdint>
#include <span>

#include "bpf/wire.h"

namespace tarpon {

/// CRC32C (Castagnoli) of `header` with its check field taken as zero, then `payload`.
std::uint32_t packet_check(const tarpon_header& header, std::span<const std::byte> payload);

}  // namespace tarpon
