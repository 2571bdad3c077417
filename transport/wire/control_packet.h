// Control packets: those that came (ControlPacket), and those that are due (ControlDue). Their
// fields are named by what they mean. On the wire the type decides what `slot` and `contributors`
// of the header mean (PROTOCOL.md, "Packet types").
//
// Values. Not thread-safe beyond that.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "bpf/wire.h"
#include "transport/agreement_packet.h"
#include "transport/operation_spec.h"
#include "transport/rank.h"

namespace tarpon {

/// Ranges that one REPAIR packet can ask for.
inline constexpr std::size_t kMaxRepairRanges = 64;

/// The header's `closed_below` in full: the number nearest to its operation.
inline std::uint32_t closed_below(const tarpon_header& header) {
  const auto delta =
      static_cast<std::int16_t>(header.closed_below - static_cast<std::uint16_t>(header.operation));
  return header.operation + static_cast<std::uint32_t>(std::int32_t{delta});
}

/// A packet that came. The header and the payload outlive it. The functions from repeats() on
/// REQUIRE is_well_formed(), and a packet of the type that they name.
class ControlPacket {
 public:
  ControlPacket(const tarpon_header& header, std::span<const std::byte> payload)
      : header_(header), payload_(payload) {}

  /// Whether `slot` and the payload fit the type. `max_entries`: limit for a HEARTBEAT, whose
  /// answer has as many entries.
  bool is_well_formed(std::size_t max_entries) const {
    switch (header_.type) {
      case TARPON_READY:
        return payload_.size() == sizeof(tarpon_ready);
      case TARPON_REPAIR:
        return payload_.size() % sizeof(tarpon_range) == 0;
      case TARPON_ABORT:
        return header_.slot < TARPON_ABORT_END && payload_.empty();
      case TARPON_HEARTBEAT:
        return header_.slot < TARPON_HEARTBEAT_END &&
               payload_.size() % sizeof(tarpon_passed) == 0 &&
               payload_.size() <= max_entries * sizeof(tarpon_passed);
      case TARPON_AGREEMENT:
        return payload_.size() == sizeof(AgreementPayload) && agreement().is_of_datagram();
      default:
        return true;
    }
  }

  /// For the fields that all types share.
  const tarpon_header& header() const { return header_; }
  std::uint8_t type() const { return header_.type; }
  Rank sender() const { return header_.sender; }
  /// The value of `slot` as it came, for records.
  std::uint32_t slot() const { return header_.slot; }
  /// Whether its sender waits for an answer.
  bool asks() const { return header_.type == TARPON_READY || header_.type == TARPON_REPAIR; }

  /// READY: how often the sender has repeated it; 0 for an answer to a mismatch.
  std::uint32_t repeats() const { return is_mismatch_answer() ? 0 : header_.slot; }
  /// READY: whether it answers a mismatch. It says nothing about grants and terms.
  bool is_mismatch_answer() const { return header_.slot == TARPON_READY_ANSWER; }
  tarpon_ready ready() const { return read<tarpon_ready>(); }

  /// CREDIT, REPAIR: slots [0, grant()) may be sent; TARPON_CREDIT_COMPLETE: all have arrived.
  std::uint32_t grant() const { return header_.slot; }
  bool confirms() const { return header_.slot == TARPON_CREDIT_COMPLETE; }
  /// REPAIR: copies the ranges, cut at `limit`. Ranges out of order are left out, so that no slot
  /// is asked for twice. Returns their number.
  std::uint32_t ranges(std::uint32_t limit, std::span<tarpon_range, kMaxRepairRanges> out) const {
    std::uint32_t count = 0;
    std::uint32_t asked = 0;
    const std::size_t all = std::min(payload_.size() / sizeof(tarpon_range), kMaxRepairRanges);
    for (std::size_t i = 0; i < all; ++i) {
      auto range = read<tarpon_range>(i);
      if (range.first >= limit || range.first < asked) continue;
      range.count = std::min(range.count, limit - range.first);
      asked = range.first + range.count;
      if (range.count > 0) out[count++] = range;
    }
    return count;
  }

  /// ABORT: a tarpon_abort_reason.
  std::uint32_t reason() const { return header_.slot; }
  /// ABORT: the ranks to blame. A rank that passes an ABORT on names them; an ABORT without names
  /// blames its sender. `everybody`: the ranks of the job.
  std::uint64_t blamed(std::uint64_t everybody) const {
    const std::uint64_t named = header_.contributors & everybody;
    return named != 0 ? named : std::uint64_t{1} << header_.sender;
  }
  /// ABORT: whether it names `rank`.
  bool names(Rank rank) const { return (header_.contributors >> rank & 1) != 0; }
  /// CLOSED: the ranks of which the sender has nothing.
  std::uint64_t absent() const { return header_.contributors; }

  /// HEARTBEAT: a tarpon_heartbeat.
  std::uint32_t heartbeat() const { return header_.slot; }
  /// HEARTBEAT: how many tags it tells, and each of them.
  std::size_t passed_count() const { return payload_.size() / sizeof(tarpon_passed); }
  tarpon_passed passed(std::size_t index) const { return read<tarpon_passed>(index); }

  AgreementPayload agreement() const { return read<AgreementPayload>(); }

 private:
  template <typename T>
  T read(std::size_t index = 0) const {
    T value;
    std::memcpy(&value, payload_.data() + index * sizeof value, sizeof value);
    return value;
  }

  const tarpon_header& header_;
  const std::span<const std::byte> payload_;
};

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

/// A packet that is due, other than DATA, HEARTBEAT and AGREEMENT. Values that may change until it
/// leaves (the grants of a READY or REPAIR, ranges) are read when it leaves; the rest is kept here,
/// since the operation may be closed by then.
struct ControlDue {
  std::uint8_t type = 0;  // tarpon_type
  std::uint8_t stage = 0;
  Rank peer = 0;
  std::uint32_t tag = 0;
  std::uint32_t operation = 0;
  std::uint32_t repeats = 0;  // READY; TARPON_READY_ANSWER: it answers a mismatch
  std::uint32_t grant = 0;    // CREDIT
  std::uint32_t reason = 0;   // ABORT
  std::uint16_t signature_hash = 0;
  std::uint64_t ranks = 0;  // CLOSED: absent ranks; ABORT: the ranks to blame

  /// The value of tarpon_header::slot. That of a REPAIR is its grant, which is set when it leaves.
  std::uint32_t slot() const {
    switch (type) {
      case TARPON_READY:
        return repeats;
      case TARPON_ABORT:
        return reason;
      default:
        return grant;
    }
  }
};

}  // namespace tarpon
