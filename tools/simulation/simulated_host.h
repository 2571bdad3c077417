// The memory of a host whose ranks are engines of one process, and its bells in virtual time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "collectives/hosts/host_group.h"
#include "collectives/hosts/host_tags.h"
#include "transport/random.h"
#include "transport/time.h"

namespace tarpon {

class SimulatedHost {
 public:
  /// All ranks are on it. `place_bytes`: hosts::HostShape::place_bytes.
  SimulatedHost(std::uint32_t ranks, std::uint32_t place_bytes, std::uint64_t seed = 1)
      : shape_{.ranks = ranks, .tags = hosts::kHostTagsInAll, .place_bytes = place_bytes},
        bytes_(hosts::HostMemory::bytes(shape_)),
        memory_(std::calloc(1, bytes_ + kPage), &std::free),
        bells_(ranks, seed) {
    void* base = memory_.get();
    std::size_t space = bytes_ + kPage;
    base_ = static_cast<std::byte*>(std::align(kPage, bytes_, base, space));
    std::vector<Rank> all;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) all.push_back(static_cast<Rank>(rank));
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      groups_.push_back({.memory = hosts::HostMemory(base_, shape_),
                         .ranks = all,
                         .self = rank,
                         .bells = &bells_});
    }
  }
  SimulatedHost(const SimulatedHost&) = delete;
  SimulatedHost& operator=(const SimulatedHost&) = delete;

  const hosts::HostGroup* of(Rank rank) const { return &groups_[rank]; }
  std::span<std::byte> bytes() { return {base_, bytes_}; }

  /// Bells that ring from now on are heard up to 50 us after `now`.
  void advance_to(Time now) { bells_.now = now; }
  /// When `rank` hears a bell; kNever: none rings.
  Time rung_at(Rank rank) const { return bells_.rung[rank]; }
  void heard(Rank rank) { bells_.rung[rank] = kNever; }

 private:
  static constexpr std::size_t kPage = 4096;

  struct RingTimes : hosts::Bells {
    RingTimes(std::uint32_t ranks, std::uint64_t seed)
        : random(seed ^ 0x686f737473), rung(ranks, kNever) {}
    void ring(std::uint32_t rank) override {
      rung[rank] =
          std::min(rung[rank], now + Duration(static_cast<std::int64_t>(random.below(50'000))));
    }

    Random random;
    Time now{};
    std::vector<Time> rung;  // by rank
  };

  const hosts::HostShape shape_;
  const std::size_t bytes_;
  const std::unique_ptr<void, decltype(&std::free)> memory_;  // zero, and untouched at first
  std::byte* base_ = nullptr;
  RingTimes bells_;
  std::vector<hosts::HostGroup> groups_;  // by rank
};

}  // namespace tarpon
