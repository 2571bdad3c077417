// The memory of hosts whose ranks are engines of one process, and its bells in virtual time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "collectives/hosts/host_group.h"
#include "transport/random.h"
#include "transport/time.h"

namespace tarpon {

class SimulatedHosts {
 public:
  /// The shape of the memory of a host with `ranks` ranks.
  static hosts::HostShape shape(std::uint32_t ranks, std::uint32_t place_bytes) {
    return {.ranks = ranks, .place_bytes = place_bytes, .least_shard = place_bytes / 64};
  }

  /// `place_bytes`: hosts::HostShape::place_bytes.
  SimulatedHosts(const hosts::HostLayout& layout, std::uint32_t place_bytes,
                 std::uint64_t seed = 1) {
    std::size_t ranks = 0;
    for (const auto& host : layout.hosts) ranks += host.size();
    rung_.resize(ranks, kNever);
    groups_.resize(ranks, {.memory = hosts::HostMemory(nullptr, {}), .layout = layout});
    hosts_.reserve(layout.count());
    for (std::uint32_t host = 0; host < layout.count(); ++host) {
      const std::vector<Rank>& local = layout.hosts[host];
      hosts_.push_back(std::make_unique<Host>(*this, local, place_bytes, seed + host));
      for (std::uint32_t self = 0; self < local.size(); ++self) {
        groups_[local[self]] = {.memory = hosts_.back()->memory(),
                                .layout = layout,
                                .host = host,
                                .self = self,
                                .bells = hosts_.back().get()};
      }
    }
  }
  SimulatedHosts(const SimulatedHosts&) = delete;
  SimulatedHosts& operator=(const SimulatedHosts&) = delete;

  const hosts::HostGroup* of(Rank rank) const { return &groups_[rank]; }
  /// The memory of the first host.
  std::span<std::byte> bytes() { return hosts_.front()->bytes(); }

  /// Bells that ring from now on are heard up to 50 us after `now`.
  void advance_to(Time now) { now_ = now; }
  /// When `rank` hears a bell; kNever: none rings.
  Time rung_at(Rank rank) const { return rung_[rank]; }
  void heard(Rank rank) { rung_[rank] = kNever; }

 private:
  class Host : public hosts::Bells {
   public:
    Host(SimulatedHosts& all, const std::vector<Rank>& ranks, std::uint32_t place_bytes,
         std::uint64_t seed)
        : all_(all),
          ranks_(ranks),
          shape_(shape(static_cast<std::uint32_t>(ranks.size()), place_bytes)),
          bytes_(hosts::HostMemory::bytes(shape_)),
          memory_(std::calloc(1, bytes_ + kPage), &std::free),
          random_(seed ^ 0x686f737473) {
      void* base = memory_.get();
      std::size_t space = bytes_ + kPage;
      base_ = static_cast<std::byte*>(std::align(kPage, bytes_, base, space));
    }

    hosts::HostMemory memory() const { return {base_, shape_}; }
    std::span<std::byte> bytes() { return {base_, bytes_}; }
    void ring(std::uint32_t rank) override {
      Time& at = all_.rung_[ranks_[rank]];
      at = std::min(at, all_.now_ + Duration(static_cast<std::int64_t>(random_.below(50'000))));
    }

   private:
    static constexpr std::size_t kPage = 4096;

    SimulatedHosts& all_;
    const std::vector<Rank> ranks_;
    const hosts::HostShape shape_;
    const std::size_t bytes_;
    const std::unique_ptr<void, decltype(&std::free)> memory_;  // zero, and untouched at first
    std::byte* base_ = nullptr;
    Random random_;
  };

  Time now_{};
  std::vector<Time> rung_;  // by rank
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<hosts::HostGroup> groups_;  // by rank
};

}  // namespace tarpon
