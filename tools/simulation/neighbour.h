// Another job on the same network. Each job's packets reach the other job too, which must accept
// none of them. Private to the simulation's files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/engine/engine.h"
#include "tools/simulation/simulation.h"

namespace tarpon {

/// A job with as many ranks and the same options as the plan's, except for the cookie, and without
/// faults. It makes two exact calls, one after the other.
class Neighbour {
 public:
  Neighbour(const SimulationPlan& plan, SimulatedNetwork& ours);
  ~Neighbour();

  /// Delivers a packet of our job to the neighbour's rank `to`.
  void inject(Rank from, Rank to, std::span<const std::byte> packet);

  Time next_event() const;
  void run(Time now);

  bool done() const;

  /// Returns what is wrong; empty if its calls are done and right.
  std::string judge() const;

 private:
  class Leak;
  void submit(Time now);
  bool over() const;

  SimulatedNetwork network_;
  std::unique_ptr<Leak> leak_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::vector<float>> buffers_;
  std::vector<std::shared_ptr<PendingCall>> calls_;
  int rounds_ = 0;  // submitted
};

}  // namespace tarpon
