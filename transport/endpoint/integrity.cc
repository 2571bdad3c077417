#include "transport/endpoint/integrity.h"

#include <isa-l/crc.h>

namespace tarpon {
namespace {

// ISA-L's prototype lacks const; it only reads.
std::uint32_t crc32c(std::uint32_t seed, const void* data, std::size_t bytes) {
  auto* mutable_data = static_cast<unsigned char*>(const_cast<void*>(data));
  return crc32_iscsi(mutable_data, static_cast<int>(bytes), seed);
}

}  // namespace

std::uint32_t packet_check(const tarpon_header& header, std::span<const std::byte> payload) {
  tarpon_header zeroed = header;
  zeroed.check = 0;
  const std::uint32_t head = crc32c(0xffffffffu, &zeroed, sizeof zeroed);
  return ~crc32c(head, payload.data(), payload.size());
}

}  // namespace tarpon
