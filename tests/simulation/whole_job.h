// Whole jobs in virtual time: each rank is an Engine over a simulated network and a Member over a
// simulated control mesh, wired as the live driver does it. The two paths fail independently.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/engine/engine.h"
#include "tests/simulation/mesh_job.h"
#include "transport/simulated/simulated_port.h"

namespace tarpon::testing_support {

/// Groups of World are those of the control mesh alone.
class WholeJob final : public SimulatedTraffic {
 public:
  struct Call {
    std::vector<float> buffer;  // in place
    std::shared_ptr<PendingCall> pending;
    Time submitted = kNever, ended = kNever;
  };

  WholeJob(std::uint64_t seed, Rank ranks)
      : world(seed),
        network_({.ranks = ranks, .seed = seed}),
        losses_(seed ^ 0x6c6f7373),
        cut_(ranks) {
    network_.watch(this);
    network_.advance_to(world.now);
    for (Rank rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<One>(*this, rank, ranks));
    }
    for (auto& one : ranks_) one->mesh.advance();
  }

  World world;

  Rank size() const { return static_cast<Rank>(ranks_.size()); }
  static constexpr std::uint64_t kElements = 1000;  // every rank owns some

  MeshRank& mesh(Rank rank) { return ranks_[rank]->mesh; }
  bool runs(Rank rank) const { return world.runs(rank); }

  /// Packets from and to `rank` are lost, or no longer.
  void cut_data(Rank rank, bool cut) { cut_[rank] = cut; }
  /// The probability that a packet is lost.
  double loss = 0;

  /// The sum of `rank` + 1 over all ranks, in every element. The call lives as long as the job.
  const Call& submit(Rank rank, std::uint32_t tag, Mode mode, Duration deadline, Duration bound) {
    One& one = *ranks_[rank];
    Call& call = *one.calls.emplace_back(std::make_unique<Call>());
    call.buffer.assign(kElements, static_cast<float>(rank + 1));
    AllreduceArguments arguments;
    arguments.input = arguments.output = call.buffer.data();
    arguments.count = kElements;
    arguments.tag = tag;
    arguments.mode = mode;
    arguments.deadline = deadline;
    if (mode == Mode::bounded) arguments.bound = bound;
    call.submitted = world.now;
    call.pending = one.engine.submit(arguments, world.now);
    one.open.push_back(&call);
    return call;
  }

  void run(Duration length) {
    const Time end = world.now + length;
    for (;;) {
      const Time next = std::max(next_of_data(), world.now + (ran_at_ == world.now ? 1ns : 0ns));
      if (world.step(std::min(next, end))) continue;
      if (next > end) return;
      run_engines();
    }
  }

  // -- SimulatedTraffic
  Route route(Time, Rank from, Rank to, std::span<const std::byte>) override {
    if (!world.runs(from) || !world.runs(to)) return {.lost = "gone"};
    if (cut_[from] || cut_[to]) return {.lost = "cut"};
    if (loss > 0 && losses_.chance(loss)) return {.lost = "loss"};
    return {};
  }
  void ended(Time, Rank, Rank, std::span<const std::byte>, std::string_view) override {}

 private:
  struct One final : MeshRank::DataPath {
    One(WholeJob& job, Rank rank, Rank ranks)
        : world(job.world),
          port(job.network_.make_port(rank)),
          engine(options_of(rank, ranks), *port),
          mesh(job.world, rank, ranks) {
      mesh.data_path = this;
    }
    Time last_heard(Rank peer) override { return engine.endpoint().peers().last_heard(peer); }
    void learn(const Fact& fact) override { engine.learn(fact, world.now); }
    void send(const std::vector<AgreementPacket>& packets) override {
      for (const AgreementPacket& packet : packets) engine.endpoint().send(packet);
      wakes = true;
    }

    World& world;
    std::unique_ptr<Port> port;
    std::vector<std::unique_ptr<Call>> calls;  // outlives the engine
    std::vector<Call*> open;
    bool wakes = false;  // the engine has something to send
    Engine engine;
    MeshRank mesh;
  };

  static EngineOptions options_of(Rank rank, Rank ranks) {
    EngineOptions options;
    options.endpoint.rank = rank;
    options.endpoint.world_size = ranks;
    options.endpoint.job = 7;
    return options;
  }

  Time next_of_data() const {
    Time next = network_.next_crossing();
    for (Rank rank = 0; rank < size(); ++rank) {
      if (!world.runs(rank)) continue;
      if (ranks_[rank]->wakes) return world.now;
      next = std::min({next, network_.next_arrival(rank), ranks_[rank]->engine.next_deadline()});
    }
    return next;
  }

  void run_engines() {
    ran_at_ = world.now;
    network_.advance_to(world.now);
    for (Rank rank = 0; rank < size(); ++rank) {
      if (!world.runs(rank)) continue;
      One& one = *ranks_[rank];
      one.wakes = false;
      while (one.engine.progress(world.now)) continue;
      std::erase_if(one.open, [&](Call* call) {
        if (!call->pending->done) return false;
        call->ended = world.now;
        return true;
      });
      one.mesh.member().passed(one.engine.take_passed());
      for (const AgreementPacket& packet : one.engine.endpoint().take_agreements()) {
        one.mesh.member().receive(packet, world.now);
      }
      one.mesh.member().set_silent(one.engine.endpoint().peers().silent(), one.engine.awaited(),
                                   world.now);
      one.mesh.advance();
    }
  }

  SimulatedNetwork network_;
  Random losses_;
  std::vector<bool> cut_;  // by rank
  std::vector<std::unique_ptr<One>> ranks_;
  Time ran_at_{};
};

}  // namespace tarpon::testing_support
