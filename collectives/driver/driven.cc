#include "collectives/driver/driven.h"

#include <cstring>

#include "transport/clock.h"

namespace tarpon {
namespace {

// If no thread drives, abort_for_good() itself waits this long for the port to release the buffers.
constexpr Duration kAbortPatience = 5ms;

}  // namespace

Driven::Driven(Driver& driver, Engine& engine, const EndpointOptions& self, PortLine& line,
               Membership& membership)
    : driver_(driver), engine_(engine, self, line, membership) {
  driver_.add(engine_);
}

Driven::~Driven() {
  stop();
  driver_.remove(engine_);
}

std::shared_ptr<PendingCall> Driven::submit(const CallArguments& arguments, bool waits) {
  const Time asked = monotonic_now();
  Engine& engine = engine_.engine();
  const bool nonfinite = engine.rules().looks_nonfinite(arguments);
  // Without the lock, since it may be large: encoding must find no NaN in the output, which a call
  // that follows reads in place of an input. The output of a call that is refused stays as it is.
  if (arguments.follows) {
    if (behind(arguments.tag) == 0) return nullptr;
    if (!engine.rules().refusal(arguments)) {
      std::memset(arguments.output, 0, bucket_bytes(arguments));
    }
  }
  const Driver::Lock lock = driver_.claim();
  if (arguments.follows && engine.behind(arguments.tag) == 0) return nullptr;
  const Time now = monotonic_now();
  auto call = arguments.learn_shares
                  ? engine_.learnt_shares().submit(arguments, nonfinite, asked, now)
                  : engine.submit(arguments, nonfinite, asked, now);
  engine_.note_work();
  if (!waits) driver_.wake(lock);
  return call;
}

void Driven::abort_for_good(Rank origin, const std::string& reason) {
  tell([&](Engine& engine) { engine.abort_for_good(origin, reason, monotonic_now()); });
  Driver::Lock lock = driver_.claim();
  if (driver_.is_driven(lock) || engine_.is_stopped()) return;
  driver_.end_calls(lock, engine_, monotonic_now() + kAbortPatience);
}

void Driven::stop() {
  Driver::Lock lock = driver_.claim();
  if (!engine_.stop(monotonic_now())) return;
  driver_.end_calls(lock, engine_, monotonic_now() + Driver::kStopPatience);
  driver_.drop_calls(lock, engine_);
}

std::uint32_t Driven::behind(std::uint32_t tag) {
  const Driver::Lock lock = driver_.claim();
  return engine_.engine().behind(tag);
}

Shares Driven::learnt_shares(std::uint32_t tag) {
  const Driver::Lock lock = driver_.claim();
  return engine_.learnt_shares().of(tag);
}

void Driven::end_learning() {
  const Driver::Lock lock = driver_.claim();
  engine_.learnt_shares().end();
}

}  // namespace tarpon
