// An io_uring with a ring of provided receive buffers, set up for one UDP socket.
//
// DESIGN NOTES
// 1. A buffer takes a whole GRO train (64 KiB), but where the network does not merge datagrams it
//    holds a single one. Few buffers stay in the cache when trains come; many are needed when
//    single datagrams come. So there are many, and only as many are in use as the port asks for:
//    supply() takes the buffers that came back last.
#pragma once

#include <liburing.h>
#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/ports/aligned_bytes.h"
#include "transport/ports/rx_batch.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Owns the rings and the receive buffers. Only the thread that called start() may call submit()
/// and enter the kernel with ring(); another thread may call the rest, and destroy it, while that
/// thread does not. A forked child has neither the rings nor their descriptor.
class UringRing {
 public:
  static constexpr unsigned kRxBuffers = 32;  // a power of two
  static constexpr int kBufferGroup = 0;

  /// Any thread may open it for another. Errors: unavailable (forbidden, too old, no lockable
  /// memory: names which, and the remedy), io.
  static Result<std::unique_ptr<UringRing>> open();

  /// Makes this thread the one that uses it. False if the kernel refuses. REQUIRES: it was not
  /// called before.
  bool start();

  /// In the thread that uses it, cancels what is armed first, so that the socket's port is free
  /// when its owner closes it. In another thread the kernel does that a little later.
  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  io_uring& ring() { return ring_; }

  /// A submission entry to fill with one of io_uring_prep_*; nullptr when the ring is full of
  /// unsubmitted ones.
  io_uring_sqe* prepare() { return ::io_uring_get_sqe(&ring_); }

  /// Hands every prepared entry to the kernel; and with `events`, lets the kernel finish what it
  /// owes this thread. Never blocks. Returns 0, or the errno after a bounded number of tries.
  int submit(bool events);

  /// Whether a submit(true) could bring completions.
  bool owes_events() const;

  /// Reads what a completed receive of `bytes` left in `buffer`. False: it is too short for one.
  bool unit(unsigned buffer, int bytes, RxUnit& result);

  /// The template of every receive; constant.
  msghdr* receive_template() { return &receive_template_; }

  /// Takes `buffer` back; the next supply() may hand it to the kernel again.
  void recycle(unsigned buffer) { free_[free_count_++] = buffer; }

  /// Hands free buffers to the kernel until `wanted` (at most kRxBuffers) are in use: with the
  /// kernel, or received and not recycled yet.
  void supply(unsigned wanted);

  /// Buffers with the kernel, or received and not recycled.
  unsigned in_use() const { return kRxBuffers - free_count_; }

  std::uint64_t system_calls = 0;

 private:
  UringRing() = default;
  Result<void> open_ring();
  Result<void> open_buffers();
  std::byte* buffer(unsigned number) { return buffers_.get() + number * kStride; }

  static constexpr std::size_t kPrefix =
      sizeof(io_uring_recvmsg_out) + sizeof(sockaddr_in) + kRxControlBytes;
  // Not a multiple of the page size: the starts of the buffers fall into different cache sets.
  static constexpr std::size_t kStride = (kPrefix + kRxBufferBytes + 63) / 64 * 64;

  io_uring ring_{};
  PrivateDescriptor descriptor_;  // of `ring_`; empty before it is open
  msghdr receive_template_{};
  AlignedBytes buffers_;
  AlignedBytes buffer_ring_memory_;
  io_uring_buf_ring* buffer_ring_ = nullptr;
  std::array<unsigned, kRxBuffers> free_{};  // stack of buffers
  unsigned free_count_ = 0;
};

/// The rings of the two threads that drive almost every port: one that calls, and the progress
/// thread.
using UringRings = std::array<std::unique_ptr<UringRing>, 2>;

/// Opens both. The kernel frees the memory of a closed ring in the background, so this waits up to
/// 100 ms for lockable memory. Errors: UringRing::open().
Result<UringRings> open_uring_rings();

}  // namespace tarpon
