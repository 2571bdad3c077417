// Packets of the model: a train stands for up to `packets` equal packets that travel together, so
// that the number of events stays bearable. Loss is drawn per packet, inside the train too; a queue
// drops whole trains.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "transport/random.h"

namespace tarpon::scale {

/// Bytes of headers of a packet within the MTU.
inline constexpr std::uint32_t kTcpHeaders = 52;      // IPv4, TCP with timestamps (RFC 7323)
inline constexpr std::uint32_t kTarponHeaders = 92;   // IPv4, UDP, 64 of PROTOCOL.md
inline constexpr std::uint32_t kTarponMultiple = 64;  // payloads are multiples of it

struct Trains {
  std::uint32_t payload = 1448;  // bytes of data in a full packet
  std::uint32_t overhead = 90;   // all else that a packet costs on the wire
  std::uint32_t packets = 1;     // in a full train

  std::uint64_t bytes() const { return std::uint64_t{payload} * packets; }
  std::uint32_t packets_of(std::uint64_t data) const {
    return static_cast<std::uint32_t>((data + payload - 1) / payload);
  }
  std::uint32_t wire_bytes(std::uint64_t data) const {
    return static_cast<std::uint32_t>(data + std::uint64_t{packets_of(data)} * overhead);
  }
};

/// `frame`: what a packet costs on the wire beyond the MTU.
inline Trains tcp_trains(std::uint32_t mtu, std::uint32_t frame, std::uint32_t packets) {
  return {mtu - kTcpHeaders, kTcpHeaders + frame, packets};
}
inline Trains tarpon_trains(std::uint32_t mtu, std::uint32_t frame, std::uint32_t packets) {
  const std::uint32_t payload = (mtu - kTarponHeaders) / kTarponMultiple * kTarponMultiple;
  return {payload, kTarponHeaders + frame, packets};
}

/// Independent loss, drawn as the distance to the next lost packet.
class LossDraw {
 public:
  LossDraw(double loss, std::uint64_t seed) : loss_(loss), random_(seed) { next(); }

  /// How many of the next `packets` packets are lost.
  std::uint32_t lost(std::uint32_t packets) {
    std::uint32_t count = 0;
    std::uint64_t at = 0;
    while (left_ < packets - at) {
      at += left_ + 1;
      ++count;
      next();
      if (at == packets) return count;
    }
    left_ -= packets - at;
    return count;
  }

  Random& random() { return random_; }

 private:
  void next() {
    left_ = UINT64_MAX;
    if (loss_ <= 0) return;
    if (loss_ >= 1) {
      left_ = 0;
      return;
    }
    const double uniform = (static_cast<double>(random_.next() >> 11) + 1) * 0x1p-53;
    left_ = static_cast<std::uint64_t>(std::log(uniform) / std::log1p(-loss_));
  }

  double loss_;
  Random random_;
  std::uint64_t left_ = UINT64_MAX;  // packets before the next lost one
};

}  // namespace tarpon::scale
