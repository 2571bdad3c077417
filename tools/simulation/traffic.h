// What the plan does to a simulated job's packets between its ranks: cuts, jams, masks. Also tells
// the hooks. Private to the simulation's files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "tools/simulation/simulation.h"

namespace tarpon {

class PlannedTraffic : public SimulatedTraffic {
 public:
  /// `copy` is called with each packet that is sent.
  using Copy = std::function<void(Rank from, Rank to, std::span<const std::byte>)>;
  PlannedTraffic(const SimulationPlan& plan, const SimulationHooks& hooks, Copy copy)
      : plan_(plan), event_(hooks.event), copy_(std::move(copy)) {}

  Route route(Time now, Rank from, Rank to, std::span<const std::byte> packet) override;
  void ended(Time now, Rank from, Rank to, std::span<const std::byte> packet,
             std::string_view fate) override {
    if (event_) event_(now, from, to, packet, fate);
  }
  void heal() { healed_ = true; }

  /// Lets the victim send `packets` packets more. Healing does not bring it back.
  void crash(std::uint32_t packets) { left_ = packets; }
  /// From now on no packet reaches the victim either.
  void dead() { left_ = 0, deaf_ = true; }
  void restart() { left_.reset(), deaf_ = false; }

 private:
  const SimulationPlan& plan_;
  decltype(SimulationHooks::event) event_;
  Copy copy_;
  std::uint32_t masked_ = 0;  // packets from mask_from to mask_to so far
  bool healed_ = false;
  std::optional<std::uint32_t> left_;  // packets until it is dead
  bool deaf_ = false;
};

}  // namespace tarpon
