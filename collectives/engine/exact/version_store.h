// Copies of versions of chunks that are sent and then added to: pieces may be sent again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/engine/call/float_buffer_pool.h"

namespace tarpon {

/// Not thread-safe.
class VersionStore {
 public:
  struct Stored {
    std::uint32_t chunk = 0, version = 0;
    std::size_t width = 0;  // bytes of an element
    std::uint64_t size = 0;
    std::byte* bytes = nullptr;  // aligned to kShardAlignment

    auto key() const { return std::pair(chunk, version); }
  };

  /// `buffers` outlives it.
  explicit VersionStore(FloatBufferPool& buffers) : buffers_(buffers) {}
  ~VersionStore();
  VersionStore(const VersionStore&) = delete;
  VersionStore& operator=(const VersionStore&) = delete;

  /// Announces that `version` of `chunk` will be stored: `size` bytes, `width` an element. May be
  /// called again for the same version.
  void expect(std::uint32_t chunk, std::uint32_t version, std::size_t width, std::uint64_t size);

  /// Allocates memory for all expected versions, with the contents of its last use. Throws
  /// std::bad_alloc.
  void allocate();

  /// Returns null if it was not expected. REQUIRES: allocate() has run. Cost: a binary search.
  const Stored* find(std::uint32_t chunk, std::uint32_t version) const;

  /// Ordered by chunk and version.
  const std::vector<Stored>& all() const { return stored_; }

 private:
  FloatBufferPool& buffers_;
  std::vector<Stored> stored_;
  std::optional<FloatBufferPool::Buffer> memory_;
};

}  // namespace tarpon
