// What one thread drives the io_uring port with.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "transport/ports/uring/uring_ring.h"

namespace tarpon {

/// Returns a number that no two threads share, even when one ends before the other begins. The
/// calling thread owns it until it ends.
inline const std::shared_ptr<const std::uint64_t>& this_thread() {
  static std::atomic<std::uint64_t> latest{0};
  thread_local const auto number = std::make_shared<const std::uint64_t>(++latest);
  return number;
}

struct ReceivedBuffer {
  int bytes = 0;
  unsigned buffer = 0;
};

/// What one thread drives the port with. Only that thread enters the kernel with its ring.
struct ThreadRing {
  /// For the calling thread.
  explicit ThreadRing(std::unique_ptr<UringRing> its_ring)
      : thread(*this_thread()), owner(this_thread()), ring(std::move(its_ring)) {}

  bool has_stash() const { return stash_begin != stash_end; }
  bool holds_packets() const { return lent_count > 0 || has_stash(); }
  bool thread_has_ended() const { return owner.expired(); }

  const std::uint64_t thread;  // number of its thread, also after the thread has ended
  const std::weak_ptr<const std::uint64_t> owner;
  // Armed in the ring.
  std::array<bool, 2> receives{};  // of the socket, and of the group
  bool wake = false;
  bool writable = false;
  std::uint64_t wake_count = 0;  // where the armed read of the wake event puts its bytes
  // Received and not yet handed out; each holds a buffer, so there are never more.
  std::array<ReceivedBuffer, UringRing::kRxBuffers> stash{};
  std::size_t stash_begin = 0;
  std::size_t stash_end = 0;
  std::array<unsigned, UringRing::kRxBuffers> lent{};  // buffers of the latest batch
  std::size_t lent_count = 0;
  const std::unique_ptr<UringRing> ring;  // last: closed first, while what it points to is alive
};

}  // namespace tarpon
