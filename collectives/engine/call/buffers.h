// Plain memory as the source and the sink of a message.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <vector>

#include "transport/endpoint.h"

namespace tarpon {

/// The contributors to each slot of a message: bit r: rank r; 0: the slot has not arrived.
using ContributorMasks = std::pmr::vector<std::uint64_t>;

/// The slots of a message in memory: slot i begins at data + i * stride.
template <typename Byte>
struct SlotArray {
  Byte* data = nullptr;
  std::uint64_t stride = 0;

  Byte* operator[](std::uint32_t slot) const { return data + slot * stride; }
};

/// Lends slots of a buffer, all with the same contributors.
class BufferSource : public Source {
 public:
  BufferSource(SlotArray<const std::byte> slots, std::uint64_t contributors)
      : slots_(slots), contributors_(contributors) {}

  OutgoingRun lend(std::uint32_t first, std::uint32_t most) override {
    return {slots_[first], slots_.stride, most, contributors_};
  }

 private:
  SlotArray<const std::byte> slots_;
  std::uint64_t contributors_;
};

/// Stores slots into a buffer and remembers the contributors to each one.
class BufferSink : public Sink {
 public:
  BufferSink(SlotArray<std::byte> slots, std::uint32_t count, std::pmr::memory_resource* memory)
      : slots_(slots), contributors_(count, 0, memory) {}

  void deliver(const IncomingRun& run) override {
    for (std::uint32_t i = 0; i < run.packets.size(); ++i) {
      const std::span<const std::byte> payload = run.payload(i);
      std::memcpy(slots_[run.first + i], payload.data(), payload.size());
      contributors_[run.first + i] = run.contributors;
    }
  }

  const ContributorMasks& contributors() const { return contributors_; }
  /// For slots that come by other ways than packets.
  ContributorMasks& contributors() { return contributors_; }

 private:
  SlotArray<std::byte> slots_;
  ContributorMasks contributors_;
};

}  // namespace tarpon
