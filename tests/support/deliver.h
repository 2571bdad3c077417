// Payload into a Sink, as if a packet had brought it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "transport/operation_spec.h"

namespace tarpon::testing_support {

/// Delivers one slot to `sink`. The packet begins at an odd address, as in a receive buffer.
inline void deliver(Sink& sink, Rank from, std::uint32_t slot, std::span<const std::byte> payload,
                    std::uint64_t contributors = 0) {
  std::vector<std::byte> bytes(1 + TARPON_HEADER_BYTES + payload.size());
  std::memcpy(bytes.data() + 1 + TARPON_HEADER_BYTES, payload.data(), payload.size());
  const RxPacket packet{.data = bytes.data() + 1,
                        .length = static_cast<std::uint32_t>(bytes.size() - 1),
                        .source = from};
  sink.deliver(
      {.from = from, .first = slot, .packets = {&packet, 1}, .contributors = contributors});
}

}  // namespace tarpon::testing_support
