#include "transport/integrity.h"

#include <isa-l/crc.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tarpon {
namespace {

#if defined(__x86_64__)
__attribute__((target("avx"))) void zero_upper() {
  _mm256_zeroupper();
}

/// ISA-L's AVX kernels (2.30) leave the upper halves of the vector registers dirty: on recent Intel
/// cores the change to the SSE code that follows, and back, costs 65 ns each time.
void leave_avx() {
  static const bool avx = __builtin_cpu_supports("avx") != 0;
  if (avx) zero_upper();
}
#else
void leave_avx() {}
#endif

// ISA-L's prototype lacks const; it only reads.
std::uint32_t crc32c(std::uint32_t seed, const void* data, std::size_t bytes) {
  auto* mutable_data = static_cast<unsigned char*>(const_cast<void*>(data));
  const std::uint32_t result = crc32_iscsi(mutable_data, static_cast<int>(bytes), seed);
  leave_avx();
  return result;
}

}  // namespace

std::uint32_t packet_check(const tarpon_header& header, std::span<const std::byte> payload) {
  tarpon_header zeroed = header;
  zeroed.check = 0;
  const std::uint32_t head = crc32c(0xffffffffu, &zeroed, sizeof zeroed);
  return ~crc32c(head, payload.data(), payload.size());
}

}  // namespace tarpon
