// Cuts what has been received into datagrams: the receiving half that both UDP ports share.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/port.h"
#include "transport/ports/address_table.h"

namespace tarpon {

/// Bytes of control data that the kernel may add to one receive: UDP_GRO and SO_RXQ_OVFL.
inline constexpr std::size_t kRxControlBytes =
    CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(std::uint32_t));

/// A receive buffer takes any UDP datagram and any GRO train.
inline constexpr std::size_t kRxBufferBytes = 65536;

/// One receive: a datagram, or a GRO train of several.
struct RxUnit {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  sockaddr_in from{};
  void* control = nullptr;
  std::size_t control_bytes = 0;
};

/// The batch behind Port::receive(): views into the receive buffers. One thread at a time.
class RxBatch {
 public:
  static constexpr std::size_t kCapacity = 512;
  /// Most datagrams in one unit: UDP_MAX_SEGMENTS of Linux 6.9 and later.
  static constexpr std::size_t kLargestUnit = 128;

  /// `peers`: addresses by rank; `others`: further addresses of these ranks.
  explicit RxBatch(std::span<const sockaddr_in> peers, std::span<const FlowSource> others = {});

  void clear() { packets_.clear(); }

  /// Whether the next unit might not fit.
  bool full() const { return packets_.size() + kLargestUnit > kCapacity; }

  /// Cuts `unit` where GRO glued it together. REQUIRES: !full().
  void add(const RxUnit& unit);

  std::span<const RxPacket> packets() const { return packets_; }

  /// The rx_ half of `statistics`. Overruns are an estimate where trains are lost: the kernel
  /// counts units, and a lost one is taken to be as long as the one that reports it.
  void count(PortStatistics& statistics) const;

 private:
  AddressTable addresses_;
  std::vector<RxPacket> packets_;
  std::uint32_t overrun_units_ = 0;  // the kernel's counter, which wraps
  PortStatistics statistics_;        // rx_ fields
};

}  // namespace tarpon
