// Memory for coded buckets, or for partial results and parked cells: a pool of its own for each.
//
// Buffers are kept from call to call: fresh memory would cost a page fault for every 4 KiB, more
// than coding does. Before the codec is turned on, buffers for the first coded calls are made and
// touched. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "collectives/engine/call/piece.h"

namespace tarpon {

class FloatBufferPool {
 public:
  struct Deallocate {
    std::pmr::memory_resource* memory = nullptr;
    std::size_t bytes = 0;
    std::size_t touched = 0;  // bytes from the start whose pages are mapped
    void operator()(float* buffer) const;
  };
  using Buffer = std::unique_ptr<float, Deallocate>;

  /// `memory` outlives the pool and its buffers.
  explicit FloatBufferPool(std::pmr::memory_resource* memory = std::pmr::new_delete_resource())
      : memory_(memory) {
    idle_.reserve(kMaxIdle + 1);
  }

  /// Returns a buffer of at least `elements`, aligned to a page, with the contents of its last use.
  /// Throws std::bad_alloc.
  Buffer allocate(std::uint64_t elements);

  /// Keeps the buffer for later calls; allocates nothing. Frees buffers that have been idle for
  /// long, and the smallest one when there are too many.
  void release(Buffer buffer);

  /// Makes a buffer for each of these sizes, unless an idle one fits: up to kMaxIdle buffers and
  /// kMaxPrepared bytes in all. Stops where memory is refused.
  void prepare(std::span<const std::uint64_t> elements);

  /// Buffers that prepare() has made, and no call has taken, are touched piece by piece. After that
  /// they are idle.
  bool has_piece() const { return !fresh_.empty() && !touched_; }
  /// The next piece. It runs until piece_ended(). REQUIRES: has_piece().
  Piece take_piece(std::uint64_t piece_bytes);
  void piece_ended();

  /// Writes to every page up to byte `to` that has not been touched yet.
  static void touch(Buffer& buffer, std::size_t to);

 private:
  static constexpr std::uint64_t kMaxPrepared = 2ull << 30;
  static constexpr std::size_t kMaxIdle = 8;
  static constexpr std::uint64_t kMaxIdleAllocations = 64;  // that do not use the idle buffer
  struct Idle {
    Buffer buffer;
    std::uint64_t since = 0;  // allocations_ when it became idle
  };
  Buffer make(std::size_t bytes);
  void keep(Buffer buffer);

  std::pmr::memory_resource* memory_;
  std::vector<Idle> idle_;  // the smallest one first
  std::vector<Buffer> fresh_;
  std::optional<Buffer> touched_;  // the buffer that the running piece touches
  std::uint64_t allocations_ = 0;
};

}  // namespace tarpon
