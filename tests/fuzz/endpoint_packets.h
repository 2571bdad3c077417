// Packets for the endpoint under test: built from a template as a peer would send it, with fields
// that an input changes.
#pragma once

#include <cstring>
#include <vector>

#include "tests/fuzz/endpoint_call.h"
#include "transport/integrity.h"

namespace tarpon::fuzz {

inline constexpr std::uint32_t kJob = 0xbeef;
inline constexpr std::uint32_t kMaxPayload = 512;

/// A datagram and the rank that its address stands for.
struct Datagram {
  Rank source = kUnknownRank;
  std::vector<std::byte> bytes;
};

/// Which operation a packet speaks of, and what an honest peer would say of it.
struct Target {
  std::uint32_t tag = 0;
  std::uint32_t number = 0;
  std::uint64_t bytes = 0;  // of each message
  std::uint16_t epoch = 0;
  std::uint8_t signature = 1;  // its first byte
  std::uint16_t signature_hash = 0;
};

/// What an endpoint puts into the header for a signature, as its peers learn it: from a packet.
inline std::uint16_t learn_signature_hash(std::uint8_t first) {
  EndpointOptions options;
  options.rank = kOwn;
  options.world_size = kRanks;
  Endpoint endpoint(options, {.name = "fuzz", .max_payload = kMaxPayload});
  CheckedSink sink(kSlot, 1);
  OperationSpec spec;
  spec.slot_bytes = kSlot;
  spec.signature[0] = first;
  spec.stages.resize(1);
  spec.stages[0].receives.push_back({0, &sink, kSlot});
  endpoint.submit(spec, Time(1s));
  endpoint.on_timer(Time(1s));
  alignas(8) std::array<std::byte, TARPON_HEADER_BYTES + kMaxPayload> memory;
  TxPacket frame;
  frame.header = memory.data();
  frame.room = memory.data() + TARPON_HEADER_BYTES;
  require(endpoint.poll_transmit(Time(1s), {&frame, 1}) == 1, "an operation is announced");
  tarpon_header header;
  std::memcpy(&header, memory.data(), sizeof header);
  return header.signature;
}

inline std::uint16_t signature_hash_of(std::uint8_t first) {
  static const std::array<std::uint16_t, 2> hashes{learn_signature_hash(1),
                                                   learn_signature_hash(2)};
  return hashes[first == 2 ? 1 : 0];
}

inline void append(std::vector<std::byte>& payload, const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  const std::size_t at = payload.size();
  payload.resize(at + bytes);
  std::memcpy(payload.data() + at, data, bytes);
}

inline std::vector<std::byte> draw_payload(Input& input, const tarpon_header& header,
                                           const Target& target) {
  std::vector<std::byte> payload;
  const std::uint8_t form = input.byte();
  if (form >= 0xe0) {  // of a length that the type may not have
    const auto raw = input.bytes(form & 0x1f);
    append(payload, raw.data(), raw.size());
  } else if (header.type == TARPON_DATA) {
    const bool known = header.slot < slots_in(target.bytes);
    payload.assign(known ? slot_length(target.bytes, header.slot) : kSlot, std::byte{form});
  } else if (header.type == TARPON_READY) {
    tarpon_ready ready{};
    ready.signature[0] = (form & 1) != 0 ? static_cast<std::uint8_t>(form >> 1) : target.signature;
    for (auto& grant : ready.grant) {
      grant = (form & 2) != 0 ? input.number<std::uint32_t>() : input.byte();
    }
    append(payload, &ready, sizeof ready);
  } else if (header.type == TARPON_AGREEMENT) {
    AgreementPayload agreement;
    agreement.kind = form & 7;
    agreement.verdict = form >> 3 & 3;
    agreement.text_bytes = form >> 5 & 1;
    append(payload, &agreement, sizeof agreement);
  } else if (header.type == TARPON_REPAIR) {
    for (int i = 0; i < (form & 7); ++i) {
      const bool wide = (form & 8) != 0;
      const std::uint32_t first = wide ? input.number<std::uint32_t>() : input.byte();
      const tarpon_range range{first, wide ? input.number<std::uint32_t>() : input.byte()};
      append(payload, &range, sizeof range);
    }
  }
  return payload;
}

/// The small values are those that an honest peer sends.
inline std::uint32_t draw_slot(Input& input) {
  const std::uint8_t small = input.byte();
  if (small == 0xff) return TARPON_CREDIT_COMPLETE;
  return small < 0xc0 ? small : input.number<std::uint32_t>();
}

inline std::uint16_t draw_closed_below(Input& input, std::uint32_t number) {
  const std::uint8_t how = input.byte();
  if (how == 0xff) return input.number<std::uint16_t>();
  const int delta = how < 0x80 ? 0 : static_cast<std::int8_t>(how) + 0x40;  // -64 to 62
  return static_cast<std::uint16_t>(number + static_cast<std::uint32_t>(delta));
}

inline Datagram draw_datagram(Input& input, const Target& target, std::uint32_t integrity) {
  constexpr Rank kPeers[] = {0, 2, 3};
  Datagram datagram;
  const std::uint8_t kind = input.byte();
  tarpon_header header{};
  header.magic = TARPON_MAGIC;
  header.version = TARPON_WIRE_VERSION;
  header.type = static_cast<std::uint8_t>(TARPON_READY + (kind & 0x0f) % (TARPON_TYPE_END - 1));
  header.job = kJob;
  header.sender = kPeers[(kind >> 4 & 3) % 3];
  header.tag = target.tag;
  header.operation = target.number;
  header.slot = draw_slot(input);
  const std::uint8_t marks = input.byte();
  header.stage = (marks >> 4) & 1;
  header.flags = static_cast<std::uint8_t>((marks & 0x07) | integrity << TARPON_INTEGRITY_SHIFT);
  header.signature = target.signature_hash;
  header.epoch = target.epoch;
  header.closed_below = draw_closed_below(input, target.number);
  if ((marks & 0x08) != 0) header.contributors = input.number<std::uint64_t>();
  if ((marks & 0x20) != 0) header.echo_us = input.number<std::uint32_t>();
  std::vector<std::byte> payload = draw_payload(input, header, target);
  header.length = static_cast<std::uint16_t>(payload.size());
  datagram.source = header.sender;
  if ((kind & 0x80) != 0) {  // one byte of the header is another one
    auto* const bytes = reinterpret_cast<std::uint8_t*>(&header);
    const std::uint32_t at = input.below(sizeof header);
    bytes[at] ^= input.byte();
  }
  header.check = integrity == TARPON_INTEGRITY_CRC32C ? packet_check(header, payload) : 0;
  append(datagram.bytes, &header, sizeof header);
  append(datagram.bytes, payload.data(), payload.size());
  return datagram;
}

}  // namespace tarpon::fuzz
