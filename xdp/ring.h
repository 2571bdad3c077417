// The rings between an AF_XDP socket and the kernel: single producer, single consumer, in memory
// that both map. We produce into the fill and the transmit ring, and consume the others.
//
// Source of the protocol: Documentation/networking/af_xdp.rst; the indices run freely and wrap.
// Not thread-safe: one thread at a time on our side.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "xdp/kernel.h"

namespace tarpon::xdp {

/// Where the parts of a ring lie in its mapping.
struct RingLayout {
  std::uint32_t* producer = nullptr;
  std::uint32_t* consumer = nullptr;
  std::uint32_t* flags = nullptr;
  void* entries = nullptr;
  std::uint32_t size = 0;  // a power of two
};

template <typename Entry>
class ProducerRing {
 public:
  ProducerRing() = default;
  explicit ProducerRing(const RingLayout& layout) : ring_(layout), next_(load(layout.producer)) {
    consumed_ = load(layout.consumer);
  }

  std::uint32_t size() const { return ring_.size; }

  /// Entries that may be written now, at most `wanted`.
  std::uint32_t room(std::uint32_t wanted) {
    if (ring_.size - (next_ - consumed_) < wanted) consumed_ = load(ring_.consumer);
    return std::min(wanted, ring_.size - (next_ - consumed_));
  }

  /// Entry i of those that room() allows.
  Entry& at(std::uint32_t i) {
    return static_cast<Entry*>(ring_.entries)[(next_ + i) & (ring_.size - 1)];
  }

  /// Hands the first `count` of them to the kernel.
  void submit(std::uint32_t count) {
    next_ += count;
    std::atomic_ref(*ring_.producer).store(next_, std::memory_order_release);
  }

  /// Entries submitted and not consumed yet.
  std::uint32_t pending() {
    consumed_ = load(ring_.consumer);
    return next_ - consumed_;
  }

  /// Whether the kernel sleeps and needs a system call to go on.
  bool needs_wakeup() const {
    return (std::atomic_ref(*ring_.flags).load(std::memory_order_relaxed) & XDP_RING_NEED_WAKEUP) !=
           0;
  }

 private:
  static std::uint32_t load(std::uint32_t* index) {
    return std::atomic_ref(*index).load(std::memory_order_acquire);
  }

  RingLayout ring_;
  std::uint32_t next_ = 0;
  std::uint32_t consumed_ = 0;  // as last seen
};

template <typename Entry>
class ConsumerRing {
 public:
  ConsumerRing() = default;
  explicit ConsumerRing(const RingLayout& layout) : ring_(layout), next_(load(layout.consumer)) {
    produced_ = load(layout.producer);
  }

  std::uint32_t size() const { return ring_.size; }

  /// Entries that may be read now, at most `wanted`.
  std::uint32_t available(std::uint32_t wanted) {
    if (produced_ - next_ < wanted) produced_ = load(ring_.producer);
    return std::min(wanted, produced_ - next_);
  }

  /// Entry i of those that available() promises.
  const Entry& at(std::uint32_t i) const {
    return static_cast<const Entry*>(ring_.entries)[(next_ + i) & (ring_.size - 1)];
  }

  /// Gives the first `count` of them back.
  void release(std::uint32_t count) {
    next_ += count;
    std::atomic_ref(*ring_.consumer).store(next_, std::memory_order_release);
  }

 private:
  static std::uint32_t load(std::uint32_t* index) {
    return std::atomic_ref(*index).load(std::memory_order_acquire);
  }

  RingLayout ring_;
  std::uint32_t next_ = 0;
  std::uint32_t produced_ = 0;  // as last seen
};

}  // namespace tarpon::xdp
