#include "collectives/engine/exact/version_store.h"

#include <algorithm>

#include "collectives/engine/schedules/shards.h"

namespace tarpon {

VersionStore::~VersionStore() {
  if (memory_) buffers_.release(std::move(*memory_));
}

void VersionStore::expect(std::uint32_t chunk, std::uint32_t version, std::size_t width,
                          std::uint64_t size) {
  stored_.push_back({chunk, version, width, size, nullptr});
}

void VersionStore::allocate() {
  const auto less = [](const Stored& a, const Stored& b) { return a.key() < b.key(); };
  const auto same = [](const Stored& a, const Stored& b) { return a.key() == b.key(); };
  std::sort(stored_.begin(), stored_.end(), less);
  stored_.erase(std::unique(stored_.begin(), stored_.end(), same), stored_.end());
  const auto padded = [](std::uint64_t bytes) {
    return (bytes + kShardAlignment - 1) / kShardAlignment * (kShardAlignment / sizeof(float));
  };
  std::uint64_t floats = 0;
  for (const Stored& one : stored_) floats += padded(one.size);
  if (floats == 0) return;
  memory_ = buffers_.allocate(floats);
  float* next = memory_->get();
  for (Stored& one : stored_) {
    one.bytes = reinterpret_cast<std::byte*>(next);
    next += padded(one.size);
  }
}

const VersionStore::Stored* VersionStore::find(std::uint32_t chunk, std::uint32_t version) const {
  const std::pair wanted(chunk, version);
  const auto found =
      std::lower_bound(stored_.begin(), stored_.end(), wanted,
                       [](const Stored& one, const auto& key) { return one.key() < key; });
  return found != stored_.end() && found->key() == wanted ? &*found : nullptr;
}

}  // namespace tarpon
