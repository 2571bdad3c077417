// The engine of a communicator, as its driver knows it (driver.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/driver/driver.h"
#include "collectives/engine/coded/coded_calls.h"

namespace tarpon {
namespace {

// If no thread drives, abort_for_good() itself waits this long for the port to release the buffers.
constexpr Duration kAbortPatience = 5ms;

}  // namespace

Driven::Driven(Driver& driver, Engine& engine, const EndpointOptions& self, PortLine& line,
               Membership& membership)
    : driver_(driver),
      engine_(engine),
      rank_(self.rank),
      line_(line),
      membership_(membership),
      learnt_shares_(engine, meter_, self.rank, self.world_size) {
  const std::unique_lock lock = driver_.claim();
  if (driver_.driven_.empty()) driver_.job_ = this;
  driver_.driven_.push_back(this);
}

Driven::~Driven() {
  stop();
  std::unique_lock lock = driver_.claim();
  driver_.await_port(lock, *this);
  std::erase(driver_.driven_, this);
  if (driver_.job_ == this) driver_.job_ = nullptr;
  line_.drop_waiting();
}

std::shared_ptr<PendingCall> Driven::submit(const AllreduceArguments& arguments, bool waits) {
  const Time asked = monotonic_now();
  const bool nonfinite = engine_.looks_nonfinite(arguments);
  // Without the lock, since it may be large: encoding must find no NaN in the output, which a call
  // that follows reads in place of an input. The output of a call that is refused stays as it is.
  if (arguments.follows) {
    if (behind(arguments.tag) == 0) return nullptr;
    if (!engine_.refusal(arguments)) {
      std::memset(arguments.output, 0, arguments.count * element_bytes(arguments.type));
    }
  }
  const std::unique_lock lock = driver_.claim();
  if (arguments.follows && engine_.behind(arguments.tag) == 0) return nullptr;
  auto call = learnt_shares_.submit(arguments, nonfinite, asked, monotonic_now());
  quiet_ = false;
  if (!waits) {
    driver_.needed_.notify_one();
    if (driver_.driving_) driver_.port_.wake();
  }
  return call;
}

void Driven::abort_for_good(Rank origin, const std::string& reason) {
  tell([&](Engine& engine) { engine.abort_for_good(origin, reason, monotonic_now()); });
  std::unique_lock lock = driver_.claim();
  if (driver_.driving_ || stopped_) return;
  driver_.end_calls(
      lock, [this] { return is_still(); }, monotonic_now() + kAbortPatience);
}

void Driven::stop() {
  std::unique_lock lock = driver_.claim();
  if (std::exchange(stopped_, true)) return;
  engine_.abort(monotonic_now());
  quiet_ = false;
  driver_.end_calls(
      lock, [this] { return is_still(); }, monotonic_now() + Driver::kStopPatience);
  drop_calls(lock);
}

/// Ends the calls that are not done: their buffers are the callers' from here on. REQUIRES: the
/// mutex, which it lets go of meanwhile.
void Driven::drop_calls(std::unique_lock<std::mutex>& lock) {
  if (engine_.outstanding() == 0) return;
  driver_.await_port(lock, *this);
  engine_.drop_calls(monotonic_now());
  driver_.announce();
}

std::uint32_t Driven::behind(std::uint32_t tag) {
  const std::unique_lock lock = driver_.claim();
  return engine_.behind(tag);
}

Shares Driven::learnt_shares(std::uint32_t tag) {
  const std::unique_lock lock = driver_.claim();
  return learnt_shares_.of(tag);
}

void Driven::end_learning() {
  const std::unique_lock lock = driver_.claim();
  learnt_shares_.end();
}

/// Whether progress() may move something.
bool Driven::has_work(Time now) const {
  return !quiet_ || line_.has_packets() || engine_.outstanding() > 0 ||
         engine_.next_deadline() <= now;
}

/// Whether its calls are done, and the peers have been told.
bool Driven::is_still() const {
  return quiet_ && engine_.outstanding() == 0;
}

/// Drives the engine for one round. `piece_has_ended`: since the last one. False when nothing moved
/// and no call ended.
bool Driven::progress(bool piece_has_ended) {
  const std::size_t before = engine_.outstanding();
  bool moved = engine_.progress(monotonic_now()) || piece_has_ended || engine_.has_piece();
  if (engine_.outstanding() != before || piece_has_ended) {
    driver_.announce();
    moved = true;  // a caller of poll() wants to know
    membership_.wish_eviction(engine_.take_eviction_wish());
    membership_.note_calls(engine_.coded_calls().take_evidence());
  }
  if (learnt_shares_.step(monotonic_now())) moved = true;
  membership_.passed(engine_.take_passed());
  take_agreements();
  tell_silent();
  quiet_ = !moved && line_.unsent() == 0;  // packets that are due may wait for room in the port
  return moved;
}

/// Gives the membership the messages on verdicts that have come. REQUIRES: the mutex.
void Driven::take_agreements() {
  const std::vector<AgreementPacket> packets = engine_.endpoint().take_agreements();
  if (!stopped_) membership_.receive(packets);
}

/// Tells the membership which ranks are silent, and which of them exact calls need, when that has
/// changed. REQUIRES: the mutex.
void Driven::tell_silent() {
  const std::uint64_t silent = engine_.endpoint().silent();
  const std::uint64_t needed = silent == 0 ? 0 : engine_.awaited();
  if (silent == silent_ && needed == needed_silent_) return;
  silent_ = silent;
  needed_silent_ = needed;
  membership_.set_silent(silent, needed);
}

}  // namespace tarpon
