// Plain memory as the source and the sink of a message.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "transport/endpoint.h"

namespace tarpon {

/// Lends slots of a buffer, all with the same contributors.
class BufferSource : public Source {
 public:
  BufferSource(const std::byte* data, std::uint32_t slot_bytes, std::uint64_t contributors)
      : data_(data), slot_bytes_(slot_bytes), contributors_(contributors) {}

  SlotView view(std::uint32_t slot) override {
    return {data_ + std::size_t{slot} * slot_bytes_, contributors_};
  }
  void write(std::uint32_t slot, std::span<std::byte> frame) override {
    std::memcpy(frame.data(), data_ + std::size_t{slot} * slot_bytes_, frame.size());
  }

 private:
  const std::byte* data_;
  std::uint32_t slot_bytes_;
  std::uint64_t contributors_;
};

/// Stores slots into a buffer and remembers whose contributions each one holds; 0: not here.
class BufferSink : public Sink {
 public:
  BufferSink(std::byte* data, std::uint32_t slots, std::uint32_t slot_bytes)
      : data_(data), slot_bytes_(slot_bytes), contributors_(slots, 0) {}

  void deliver(Rank, std::uint32_t slot, std::span<const std::byte> payload,
               std::uint64_t contributors) override {
    std::memcpy(data_ + std::size_t{slot} * slot_bytes_, payload.data(), payload.size());
    contributors_[slot] = contributors;
  }

  const std::vector<std::uint64_t>& contributors() const { return contributors_; }

 private:
  std::byte* data_;
  std::uint32_t slot_bytes_;
  std::vector<std::uint64_t> contributors_;
};

}  // namespace tarpon
