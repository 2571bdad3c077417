// Fields of control packets, read from the wire.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "bpf/wire.h"
#include "transport/agreement_packet.h"
#include "transport/operation_spec.h"

namespace tarpon {

/// Ranges that one REPAIR packet can ask for.
inline constexpr std::size_t kMaxRepairRanges = 64;

/// Copies the ranges of a REPAIR, cut at `limit`; ones out of order are left out, so that no slot
/// is asked for twice. Returns their number.
inline std::uint32_t read_ranges(std::span<const std::byte> payload, std::uint32_t limit,
                                 std::span<tarpon_range, kMaxRepairRanges> out) {
  std::uint32_t count = 0;
  std::uint32_t asked = 0;
  const std::size_t ranges = std::min(payload.size() / sizeof(tarpon_range), kMaxRepairRanges);
  for (std::size_t i = 0; i < ranges; ++i) {
    tarpon_range range;
    std::memcpy(&range, payload.data() + i * sizeof range, sizeof range);
    if (range.first >= limit || range.first < asked) continue;
    range.count = std::min(range.count, limit - range.first);
    asked = range.first + range.count;
    if (range.count > 0) out[count++] = range;
  }
  return count;
}

inline tarpon_ready read_ready(std::span<const std::byte> payload) {
  tarpon_ready ready;
  std::memcpy(&ready, payload.data(), sizeof ready);
  return ready;
}

/// REQUIRES: a payload of this size.
inline AgreementPayload read_agreement(std::span<const std::byte> payload) {
  AgreementPayload agreement;
  std::memcpy(&agreement, payload.data(), sizeof agreement);
  return agreement;
}

/// Whether it is the payload of an AGREEMENT.
inline bool is_agreement(std::span<const std::byte> payload) {
  return payload.size() == sizeof(AgreementPayload) && read_agreement(payload).is_of_datagram();
}

/// The header's `closed_below` in full: the number nearest to its operation.
inline std::uint32_t closed_below(const tarpon_header& header) {
  const auto delta =
      static_cast<std::int16_t>(header.closed_below - static_cast<std::uint16_t>(header.operation));
  return header.operation + static_cast<std::uint32_t>(std::int32_t{delta});
}

inline Signature signature_of(const tarpon_ready& ready) {
  Signature signature;
  std::copy(std::begin(ready.signature), std::end(ready.signature), signature.begin());
  return signature;
}

inline CallTerms terms_of(const tarpon_ready& ready) {
  CallTerms terms;
  std::copy(std::begin(ready.terms), std::end(ready.terms), terms.begin());
  return terms;
}

}  // namespace tarpon
