// A memory resource that counts allocations of buckets, and refuses them if a test says so.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <new>

namespace tarpon::testing_support {

/// Counts and refuses allocations of a page for buffers.
class LargeMemory : public std::pmr::memory_resource {
 public:
  int large = 0;  // allocations
  int held = 0;   // of them, not freed
  bool refuses = false;

 private:
  static constexpr std::size_t kLarge = 1 << 20;
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes >= kLarge) {
      if (refuses) throw std::bad_alloc();
      ++large;
      ++held;
    }
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    if (bytes >= kLarge) --held;
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace tarpon::testing_support
