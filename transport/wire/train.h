// Trains: packets of one batch whose slots follow one another, and whose headers differ in slot,
// length, packet number and check only. One check of a header holds for its whole train.
#pragma once

#include <cstdint>
#include <span>

#include "bpf/wire.h"
#include "transport/port.h"

namespace tarpon {

/// Fetches the header that the loop over a batch reads next: the headers lie scattered over the
/// receive buffers, so each would be a cache miss.
inline void prefetch_header(std::span<const RxPacket> packets) {
  if (packets.size() > 2) __builtin_prefetch(packets[2].data);
}

/// Returns the train of the first packet, which is not shorter than a header and has `slot`.
/// `integrity`: the job's; packets whose check fails are of no train.
std::span<const RxPacket> train_of(std::span<const RxPacket> packets, std::uint32_t slot,
                                   tarpon_integrity integrity);

}  // namespace tarpon
