// The frames that an AF_XDP port receives: lent to its caller where the kernel put them. Only a
// frame of several chunks is put together first, as chunks end in the middle of elements.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/port.h"
#include "transport/ports/address_table.h"
#include "xdp/queue.h"

namespace tarpon {

class XdpReceiver {
 public:
  /// `queues` outlive the receiver.
  XdpReceiver(std::span<xdp::Queue> queues, AddressTable sources);

  /// Gives the frames of the last batch back to the kernel.
  void release();
  /// Takes the frames that have come, as a new batch. REQUIRES: release() was called.
  void receive();
  /// Adds packets that came another way.
  void add(std::span<const RxPacket> packets) {
    batch_.insert(batch_.end(), packets.begin(), packets.end());
  }
  std::span<const RxPacket> batch() const { return batch_; }
  const PortStatistics& counted() const { return counted_; }

 private:
  static constexpr std::size_t kChunksAtOnce = 128;
  struct Lent {
    std::size_t queue;
    std::uint32_t frame;
  };

  void take_chunk(std::size_t queue, const xdp::ReceivedChunk& chunk);
  void take_frame(std::span<const std::byte> frame);

  const std::span<xdp::Queue> queues_;
  AddressTable sources_;
  std::array<xdp::ReceivedChunk, kChunksAtOnce> chunks_{};
  std::vector<Lent> lent_;
  std::vector<RxPacket> batch_;
  std::vector<std::vector<std::byte>> parts_;  // by queue: a frame whose next chunk has not come
  std::vector<std::vector<std::byte>> whole_;  // frames put together for this batch
  std::size_t whole_used_ = 0;
  PortStatistics counted_;
};

}  // namespace tarpon
