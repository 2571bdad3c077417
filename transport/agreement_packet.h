// AGREEMENT: a message of Communicator::agree(), as a datagram. The transport checks its form, and
// does not interpret it (collectives/membership/agreement.h does).
#pragma once

#include <cstdint>

#include "transport/rank.h"

namespace tarpon {

/// The payload, as on the wire: little-endian, fields in this order. The control mesh carries the
/// same, with a text behind it. Fields of other kinds are 0. Masks: bit r: rank r.
struct AgreementPayload {
  static constexpr std::uint8_t kReport = 1, kVerdict = 2;  // kinds that datagrams carry
  static constexpr std::uint8_t kVerdicts = 3;              // apply, skip, halt

  std::uint8_t kind = 0;
  std::uint8_t nonfinite = 0;  // report: 1: an input was infinite or no number
  std::uint8_t verdict = 0;    // below kVerdicts
  std::uint8_t reserved = 0;
  std::uint32_t decided_by = 0;  // verdict: rank
  std::uint64_t step = 0;
  double report_lost = 0;         // report: share that was lost
  double verdict_lost = 0;        // verdict: the worst of the reports
  std::uint64_t reporters = 0;    // verdict: ranks whose reports were heard
  std::uint64_t rejoin = 0;       // verdict: ranks that wait in rejoin()
  std::uint64_t late = 0;         // ranks that were late; verdict: by any report that was heard
  std::uint64_t digest = 0;       // report: of the sender's model; 0: none is told
  std::uint64_t differing = 0;    // verdict: ranks with another digest
  std::uint64_t gone = 0;         // verdict: ranks that have left, or whose processes are gone
  std::uint32_t patience_ms = 0;  // report: how long the decider may wait for others
  std::uint32_t text_bytes = 0;   // on the control mesh, behind this; datagrams: 0

  bool is_of_datagram() const {
    return (kind == kReport || kind == kVerdict) && verdict < kVerdicts && text_bytes == 0;
  }
};
static_assert(sizeof(AgreementPayload) == 88);

struct AgreementPacket {
  Rank peer = 0;  // its receiver; its sender where it came
  AgreementPayload payload;
};

}  // namespace tarpon
