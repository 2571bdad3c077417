// Memory with an alignment, for packet buffers and rings.
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

/// Allocates `bytes` of any content; pages become resident when they are first used. REQUIRES:
/// `alignment` is a power of two.
inline AlignedBytes make_untouched_bytes(std::size_t bytes, std::size_t alignment) {
  const std::align_val_t align{alignment};
  return AlignedBytes(static_cast<std::byte*>(::operator new[](bytes, align)),
                      AlignedDelete{align});
}

/// The same, zeroed. Touching every page here keeps page faults off the data path.
inline AlignedBytes make_aligned_bytes(std::size_t bytes, std::size_t alignment) {
  AlignedBytes memory = make_untouched_bytes(bytes, alignment);
  std::memset(memory.get(), 0, bytes);
  return memory;
}

}  // namespace tarpon
