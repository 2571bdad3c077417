#include "collectives/engine/exact/parked_cells.h"

#include <cstring>
#include <utility>

namespace tarpon {

ParkedCells::~ParkedCells() {
  if (memory_) pool_.release(std::move(*memory_));
}

std::uint32_t ParkedCells::expect(std::uint32_t cells) {
  const auto first = static_cast<std::uint32_t>(places_.size());
  places_.resize(places_.size() + cells, kNone);
  return first;
}

void ParkedCells::allocate(std::size_t cell_bytes) {
  if (places_.empty()) return;
  free_.reserve(places_.size());
  cell_bytes_ = cell_bytes;
  memory_ = pool_.allocate((places_.size() * cell_bytes + sizeof(float) - 1) / sizeof(float));
}

void ParkedCells::park(std::uint32_t cell, std::span<const std::byte> data) {
  std::uint32_t place = fresh_;
  if (free_.empty()) {
    ++fresh_;
  } else {
    place = free_.back();
    free_.pop_back();
  }
  std::memcpy(at(place), data.data(), data.size());
  places_[cell] = place;
}

const std::byte* ParkedCells::take(std::uint32_t cell) {
  const std::uint32_t place = std::exchange(places_[cell], kNone);
  free_.push_back(place);
  return at(place);
}

std::byte* ParkedCells::at(std::uint32_t place) const {
  return reinterpret_cast<std::byte*>(memory_->get()) + place * cell_bytes_;
}

}  // namespace tarpon
