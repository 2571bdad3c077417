#include "transport/wire/train.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "bpf/wire.h"
#include "transport/integrity.h"

namespace tarpon {
namespace {

using HeaderWords = std::array<std::uint64_t, sizeof(tarpon_header) / sizeof(std::uint64_t)>;

/// The bits that are equal in all headers of a train.
constexpr HeaderWords train_bits() {
  std::array<std::uint8_t, sizeof(tarpon_header)> bytes{};
  bytes.fill(0xff);
  const auto clear = [&bytes](std::size_t at, std::size_t size) {
    for (std::size_t i = at; i < at + size; ++i) bytes[i] = 0;
  };
  clear(offsetof(tarpon_header, slot), sizeof(tarpon_header::slot));
  clear(offsetof(tarpon_header, length), sizeof(tarpon_header::length));
  clear(offsetof(tarpon_header, packet_number), sizeof(tarpon_header::packet_number));
  clear(offsetof(tarpon_header, check), sizeof(tarpon_header::check));
  return std::bit_cast<HeaderWords>(bytes);
}

/// Whether both packets, not shorter than headers, could be of one train.
bool in_one_train(const RxPacket& a, const RxPacket& b) {
  constexpr HeaderWords kBits = train_bits();
  HeaderWords first, second;
  std::memcpy(&first, a.data, sizeof first);
  std::memcpy(&second, b.data, sizeof second);
  std::uint64_t differ = 0;
  for (std::size_t i = 0; i < kBits.size(); ++i) differ |= (first[i] ^ second[i]) & kBits[i];
  return differ == 0 && a.source == b.source;
}

}  // namespace

std::span<const RxPacket> train_of(std::span<const RxPacket> packets, std::uint32_t slot,
                                   tarpon_integrity integrity) {
  std::size_t count = 1;
  for (; count < packets.size(); ++count) {
    prefetch_header(packets.subspan(count));
    const RxPacket& packet = packets[count];
    if (packet.length < TARPON_HEADER_BYTES || !in_one_train(packets[0], packet)) break;
    tarpon_header header;
    std::memcpy(&header, packet.data, sizeof header);
    if (header.slot != ++slot || header.length != packet.length - TARPON_HEADER_BYTES) break;
    if (integrity == TARPON_INTEGRITY_CRC32C &&
        packet_check(header, std::span(packet.data, packet.length).subspan(sizeof header)) !=
            header.check) {
      break;
    }
  }
  return packets.first(count);
}

}  // namespace tarpon
