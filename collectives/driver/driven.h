// A communicator's way to its engine, which a driver runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collectives/driver/driven_engine.h"
#include "collectives/driver/driver.h"

namespace tarpon {

/// Any thread may call.
class Driven {
 public:
  /// The arguments after `driver` are those of DrivenEngine. All outlive this object. Those of the
  /// job come first.
  Driven(Driver& driver, Engine& engine, const EndpointOptions& self, PortLine& line,
         Membership& membership);
  /// Calls stop(), and drops the packets that the port still holds.
  ~Driven();
  Driven(const Driven&) = delete;
  Driven& operator=(const Driven&) = delete;

  /// Engine::submit(), or LearntShares::submit() where the call asks for learnt shares. Never waits
  /// for peers. `waits`: the caller calls Driver::wait() next. Null where a call that follows finds
  /// that this rank is not behind. Throws std::bad_alloc. The call has no number then.
  std::shared_ptr<PendingCall> submit(const CallArguments& arguments, bool waits);

  /// Engine::behind().
  std::uint32_t behind(std::uint32_t tag);

  /// Ends outstanding and later calls here, and tells the peers.
  void abort_for_good(Rank origin, const std::string& reason);

  /// Returns the result of `look(engine)`, which only reads.
  template <typename Look>
  auto look(Look look);

  /// Applies `change(engine)`, an event that did not arrive in a packet, and wakes the driver. Does
  /// nothing after stop().
  template <typename Change>
  void tell(Change change);

  /// The shares of the next call of `tag` that learns.
  Shares learnt_shares(std::uint32_t tag);

  /// Takes part in no further exchange of measurements: the caller says goodbye next.
  void end_learning();

  /// Ends outstanding calls and tells the peers. Takes a second at most. Calls that are not done by
  /// then give up the rest of their work: on return all calls are done.
  void stop();

  Driver& driver() { return driver_; }

 private:
  Driver& driver_;
  DrivenEngine engine_;
};

template <typename Look>
auto Driven::look(Look look) {
  const Driver::Lock lock = driver_.claim();
  return look(static_cast<const Engine&>(engine_.engine()));
}

template <typename Change>
void Driven::tell(Change change) {
  {
    const Driver::Lock lock = driver_.claim();
    if (engine_.is_stopped()) return;
    change(engine_.engine());
    engine_.note_work();
    driver_.wake(lock);
  }
  driver_.announce();
}

}  // namespace tarpon
