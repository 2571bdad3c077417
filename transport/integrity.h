// What protects packets: names and sizes, and CRC32C over header and payload, for jobs whose
// datapath has no checksum of its own.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "bpf/wire.h"

namespace tarpon {

/// CRC32C (Castagnoli) of `header` with its check field taken as zero, then `payload`.
std::uint32_t packet_check(const tarpon_header& header, std::span<const std::byte> payload);

/// "udp", "sealed", ...
constexpr std::string_view name(tarpon_integrity integrity) {
  switch (integrity) {
    case TARPON_INTEGRITY_NONE:
      return "none";
    case TARPON_INTEGRITY_UDP:
      return "udp";
    case TARPON_INTEGRITY_CRC32C:
      return "crc32c";
    case TARPON_INTEGRITY_KEYED:
      return "keyed";
    case TARPON_INTEGRITY_SEALED:
      return "sealed";
  }
  return "?";
}

/// Whether packets carry tags, for which a job needs a secret.
constexpr bool needs_secret(tarpon_integrity integrity) {
  return integrity == TARPON_INTEGRITY_KEYED || integrity == TARPON_INTEGRITY_SEALED;
}

/// Bytes after the payload of each packet of a job.
constexpr std::uint32_t tag_bytes(tarpon_integrity integrity) {
  return needs_secret(integrity) ? TARPON_TAG_BYTES : 0;
}

}  // namespace tarpon
