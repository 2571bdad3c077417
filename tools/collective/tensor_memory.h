// Memory for buckets as frameworks allocate their tensors: at a cache line.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace tarpon {

template <typename T>
struct TensorAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  TensorAllocator() = default;
  template <typename U>
  TensorAllocator(const TensorAllocator<U>&) {}

  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kLine));
  }
  void deallocate(T* data, std::size_t) { ::operator delete(data, kLine); }
  bool operator==(const TensorAllocator&) const = default;
};

using TensorBytes = std::vector<std::byte, TensorAllocator<std::byte>>;

}  // namespace tarpon
