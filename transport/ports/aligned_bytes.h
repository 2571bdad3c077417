// Zeroed memory with an alignment, for packet buffers and rings.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

namespace tarpon {

struct AlignedDelete {
  std::align_val_t alignment{};
  void operator()(std::byte* memory) const { ::operator delete[](memory, alignment); }
};

/// Owner of aligned memory; move-only.
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

/// `bytes` of zeroes. REQUIRES: `alignment` is a power of two.
inline AlignedBytes make_aligned_bytes(std::size_t bytes, std::size_t alignment) {
  const std::align_val_t align{alignment};
  auto* memory = static_cast<std::byte*>(::operator new[](bytes, align));
  // Touching every page here keeps page faults off the data path.
  std::memset(memory, 0, bytes);
  return AlignedBytes(memory, AlignedDelete{align});
}

}  // namespace tarpon
