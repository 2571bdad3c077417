// Cells of partial results that came before the versions that they are added to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/engine/call/float_buffer_pool.h"

namespace tarpon {

/// Takes memory for every cell that may be early from a pool. Cells use freed places first, so that
/// only as much memory is touched as is parked at once, and it stays in the cache. Not thread-safe.
class ParkedCells {
 public:
  /// `pool` outlives it.
  explicit ParkedCells(FloatBufferPool& pool) : pool_(pool) {}
  ~ParkedCells();
  ParkedCells(const ParkedCells&) = delete;
  ParkedCells& operator=(const ParkedCells&) = delete;

  /// Adds `cells` cells that may be early, and returns the number of the first one. Must not be
  /// called after allocate().
  std::uint32_t expect(std::uint32_t cells);
  /// Called once all cells are expected. No cell is longer than `cell_bytes`. Throws
  /// std::bad_alloc.
  void allocate(std::size_t cell_bytes);

  /// Copies `data`. REQUIRES: the cell is expected and not parked.
  void park(std::uint32_t cell, std::span<const std::byte> data);
  bool holds(std::uint32_t cell) const { return places_[cell] != kNone; }
  /// Returns the data of a cell, which is no longer parked. The data stays valid until the next
  /// park(). REQUIRES: holds(cell).
  const std::byte* take(std::uint32_t cell);

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;

  std::byte* at(std::uint32_t place) const;

  FloatBufferPool& pool_;
  std::size_t cell_bytes_ = 0;
  std::optional<FloatBufferPool::Buffer> memory_;
  std::vector<std::uint32_t> places_;  // of each cell, or kNone
  std::vector<std::uint32_t> free_;    // places below fresh_
  std::uint32_t fresh_ = 0;            // places from here on were never used
};

}  // namespace tarpon
