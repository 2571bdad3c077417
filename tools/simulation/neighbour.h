// Another job on the same network. Each job's packets reach the other job too, which must accept
// none of them. Private to the simulation's files.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/engine/engine.h"
#include "tools/simulation/seal_ledger.h"
#include "tools/simulation/simulation.h"
#include "transport/job_key.h"
#include "transport/rank_map.h"

namespace tarpon {

struct NeighbourOptions {
  std::string name;
  /// Its rank i has the address of our rank members[i].
  std::vector<Rank> members;
  std::uint32_t job = 0;  // cookie
  std::uint64_t seed = 0;
  tarpon_integrity integrity = TARPON_INTEGRITY_CRC32C;
  std::uint32_t flows = 1;
  bool multicast = false;
  /// With a secret.
  JobKey key = {};
  SealLedger* ledger = nullptr;
};

/// A job with slots as those of the plan, and without faults. It makes two exact calls, one after
/// the other.
class Neighbour {
 public:
  /// Called with each packet that it sends, and the numbers that we have for its ranks.
  using Copy = std::function<void(Rank from, Rank to, std::span<const std::byte>)>;
  Neighbour(const SimulationPlan& plan, const NeighbourOptions& options, Copy copy);
  ~Neighbour();

  /// Delivers a packet from the address of our rank `from` to that of `to`, if both are members.
  void inject(Rank from, Rank to, std::span<const std::byte> packet);

  Time next_event() const;
  void run(Time now);

  bool done() const;

  /// Returns the first defect; empty: none. A defect is a call that is not complete, a wrong
  /// result, or a packet with a wrong tag that a port has handed on.
  std::string judge() const;

 private:
  class Leak;
  void submit(Time now);
  bool over() const;
  std::string judge_calls() const;

  const NeighbourOptions options_;
  const RankMap ranks_;
  SimulatedNetwork network_;
  std::unique_ptr<Leak> leak_;
  std::size_t first_port_ = 0;  // of the ledger
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::vector<float>> buffers_;
  std::vector<std::shared_ptr<PendingCall>> calls_;
  int rounds_ = 0;  // submitted
};

}  // namespace tarpon
