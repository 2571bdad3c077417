// The parking lot: whole packets of operations that have not begun here. A fixed number of
// cells, taken and freed in LIFO order so that the ones in use stay in the cache; cells never used
// are never touched and cost no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace tarpon {

class ParkingLot {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  ParkingLot(std::size_t cells, std::size_t cell_bytes)
      : cell_bytes_(cell_bytes),
        bytes_(std::make_unique_for_overwrite<std::byte[]>(cells * cell_bytes)),
        lengths_(cells) {
    free_.reserve(cells);
    for (std::size_t i = cells; i > 0; --i) free_.push_back(static_cast<std::uint32_t>(i - 1));
  }

  /// Copies `packet`, at most a cell long; kNone when every cell is taken.
  std::uint32_t park(std::span<const std::byte> packet) {
    if (free_.empty() || packet.size() > cell_bytes_) return kNone;
    const std::uint32_t cell = free_.back();
    free_.pop_back();
    std::memcpy(bytes_.get() + cell * cell_bytes_, packet.data(), packet.size());
    lengths_[cell] = static_cast<std::uint32_t>(packet.size());
    return cell;
  }

  std::span<const std::byte> at(std::uint32_t cell) const {
    return {bytes_.get() + cell * cell_bytes_, lengths_[cell]};
  }

  void release(std::uint32_t cell) { free_.push_back(cell); }

  std::size_t available() const { return free_.size(); }
  std::size_t capacity() const { return lengths_.size(); }

 private:
  std::size_t cell_bytes_;
  std::unique_ptr<std::byte[]> bytes_;
  std::vector<std::uint32_t> lengths_;
  std::vector<std::uint32_t> free_;
};

}  // namespace tarpon
