// The parts of a live communicator, and how news of the mesh reaches its engine.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/driver/connect.h"
#include "collectives/driver/driver.h"
#include "collectives/driver/learnt_shares.h"
#include "collectives/engine/coded_calls.h"
#include "collectives/engine/engine.h"
#include "collectives/flight/flight.h"
#include "collectives/membership/membership.h"
#include "transport/clock.h"

namespace tarpon {

class Communicator::State {
 public:
  State(Connection connection, std::unique_ptr<Flight> flight)
      : given_(std::move(connection.options)),
        flight_(std::move(flight)),
        control_(std::move(connection.control)),
        ranks_(std::move(connection.ranks)),
        options_(connection.agreed),
        shrunk_slots_(std::move(connection.shrunk_slots)),
        port_(std::move(connection.port)),
        engine_(options_, *port_),
        membership_(std::move(connection.membership)),
        driver_(engine_, *port_, *flight_, *membership_),
        learnt_shares_(driver_, options_.endpoint.rank, options_.endpoint.world_size) {
    membership_->start(
        {.learned = [this](const Fact& fact) { learn(fact); },
         .aborted =
             [this](Rank rank, const std::string& reason) {
               driver_.tell(
                   [&](Engine& engine) { engine.abort_for_good(rank, reason, monotonic_now()); });
             },
         .last_heard =
             [this](Rank rank) {
               return driver_.look(
                   [&](const Engine& engine) { return engine.endpoint().last_heard(rank); });
             },
         .next_numbers =
             [this] {
               return driver_.look([](const Engine& engine) { return engine.next_numbers(); });
             },
         .epoch_decided =
             [this](const EpochRecord& record) {
               driver_.tell([&](Engine& engine) { engine.coded_calls().decided(record); });
             }});
  }

  ~State() { stop(); }

  /// Ends outstanding calls and the progress thread, and tells the peers.
  void stop() {
    if (!driver_.stop()) return;
    if (regrouped_) membership_->leave_at_once();
    membership_->stop();
    driver_.join();
  }

  /// Says goodbye, and returns when every live rank has passed this rank's operations or left.
  Result<void> leave(Time deadline) {
    return membership_->leave(driver_.look([](const Engine& engine) { return engine.unpassed(); }),
                              deadline);
  }

  /// Makes stop() say goodbye, because the next communicator has been made: the peers then do not
  /// take the end of this one for a death.
  void leave_when_stopped() { regrouped_ = true; }

  /// Ends outstanding and later calls. `peers_too`: those of the other ranks too, over the mesh.
  void abort(const std::string& reason, bool peers_too) {
    membership_->abort(reason, peers_too);
    driver_.abort_for_good(options_.endpoint.rank, reason);
  }

  Driver& driver() { return driver_; }
  LearntShares& learnt_shares() { return learnt_shares_; }
  ControlChannel& control() { return *control_; }
  Membership& membership() { return *membership_; }
  /// The options as given to connect(), with the network that was found.
  const CommunicatorOptions& given() const { return given_; }
  const std::vector<RankInfo>& ranks() const { return ranks_; }
  const EngineOptions& options() const { return options_; }
  const std::string& shrunk_slots() const { return shrunk_slots_; }

 private:
  /// Called on the mesh's thread.
  void learn(const Fact& fact) {
    std::uint64_t passed = 0;
    driver_.tell([&](Engine& engine) {
      engine.learn(fact, monotonic_now());
      passed = engine.take_passed();
    });
    membership_->passed(passed);
  }

  const CommunicatorOptions given_;
  const std::unique_ptr<Flight> flight_;  // outlives the engine, which writes to its recorder
  std::unique_ptr<ControlChannel> control_;
  const std::vector<RankInfo> ranks_;
  const EngineOptions options_;
  const std::string shrunk_slots_;
  std::unique_ptr<Port> port_;
  Engine engine_;
  std::unique_ptr<Membership> membership_;
  Driver driver_;  // stop() ends its thread and the membership's before anything is destroyed
  LearntShares learnt_shares_;
  std::atomic<bool> regrouped_ = false;
};

}  // namespace tarpon
