#include "collectives/hosts/host_memory.h"

namespace tarpon::hosts {
namespace {

constexpr std::uint64_t kPage = 4096;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(SleepWord) == 64 && sizeof(CallBoard) == 64 && sizeof(Binding) == 16);

constexpr std::uint64_t in_pages(std::uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

std::uint64_t bindings_at(const HostShape& shape) {
  return in_pages(shape.ranks * sizeof(SleepWord));
}

std::uint64_t boards_at(const HostShape& shape) {
  return bindings_at(shape) + in_pages((1 + kCommonLines) * sizeof(Binding));
}

std::uint64_t places_at(const HostShape& shape) {
  return boards_at(shape) + in_pages(std::uint64_t{kLines} * shape.ranks * sizeof(Board));
}

/// Of the inputs of all ranks and the result.
std::uint64_t bytes_of_place(const HostShape& shape) {
  return (std::uint64_t{shape.ranks} + 1) * shape.place_bytes;
}

}  // namespace

std::uint64_t HostMemory::bytes(const HostShape& shape) {
  return places_at(shape) + std::uint64_t{kLines} * bytes_of_line(shape);
}

std::uint64_t HostMemory::bytes_of_line(const HostShape& shape) {
  return shape.places * bytes_of_place(shape);
}

std::atomic<std::uint64_t>& HostMemory::sleep_word(std::uint32_t rank) const {
  return reinterpret_cast<SleepWord*>(base_)[rank].word;
}

std::atomic<std::uint32_t>& HostMemory::used_lines() const {
  return reinterpret_cast<Binding*>(base_ + bindings_at(shape_))[0].count;
}

Binding& HostMemory::binding(std::uint32_t index) const {
  return reinterpret_cast<Binding*>(base_ + bindings_at(shape_))[1 + index];
}

Board& HostMemory::board(std::uint32_t line, std::uint32_t rank) const {
  return reinterpret_cast<Board*>(base_ + boards_at(shape_))[line * shape_.ranks + rank];
}

std::uint64_t HostMemory::lacking(std::uint32_t line, Part part, Position wanted) const {
  std::uint64_t ranks = 0;
  for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    const auto& done = board(line, rank).done[static_cast<std::size_t>(part)];
    const bool reached = has_reached(done.load(std::memory_order_acquire), wanted);
    ranks |= std::uint64_t{reached ? 0u : 1u} << rank;
  }
  return ranks;
}

std::byte* HostMemory::input(std::uint32_t line, std::uint32_t place, std::uint32_t rank) const {
  const std::uint64_t index = std::uint64_t{line} * shape_.places + place;
  return base_ + places_at(shape_) + index * bytes_of_place(shape_) +
         std::uint64_t{rank} * shape_.place_bytes;
}

std::byte* HostMemory::result(std::uint32_t line, std::uint32_t place) const {
  return input(line, place, shape_.ranks);
}

}  // namespace tarpon::hosts
