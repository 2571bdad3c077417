#include "collectives/driver/driven_engine.h"

#include <utility>
#include <vector>

#include "collectives/engine/coded/coded_calls.h"
#include "transport/clock.h"

namespace tarpon {

DrivenEngine::DrivenEngine(Engine& engine, const EndpointOptions& self, PortLine& line,
                           Membership& membership)
    : engine_(engine),
      rank_(self.rank),
      line_(line),
      membership_(membership),
      learnt_shares_(engine, meter_, self.rank, self.world_size) {}

bool DrivenEngine::has_work(Time now) const {
  return !quiet_ || line_.has_packets() || engine_.outstanding() > 0 ||
         engine_.next_deadline() <= now || engine_.host_calls().can_move();
}

DrivenEngine::Round DrivenEngine::progress(bool piece_has_ended) {
  Round round;
  const std::size_t before = engine_.outstanding();
  round.moved = engine_.progress(monotonic_now()) || piece_has_ended || engine_.pieces().any();
  if (engine_.outstanding() != before || piece_has_ended) {
    round.moved = round.calls_ended = true;  // a caller of poll() wants to know
    membership_.wish_eviction(engine_.take_eviction_wish());
    membership_.note_calls(engine_.coded_calls().take_evidence());
  }
  if (learnt_shares_.step(monotonic_now())) round.moved = true;
  membership_.passed(engine_.take_passed());
  take_agreements();
  tell_silent();
  quiet_ = !round.moved && line_.unsent() == 0;  // due packets may wait for room in the port
  return round;
}

/// Gives the membership the messages on verdicts that have come.
void DrivenEngine::take_agreements() {
  const std::vector<AgreementPacket> packets = engine_.endpoint().take_agreements();
  if (!stopped_) membership_.receive(packets);
}

void DrivenEngine::tell_silent() {
  const std::uint64_t silent = engine_.endpoint().peers().silent();
  const std::uint64_t needed = silent == 0 ? 0 : engine_.awaited();
  if (silent == silent_ && needed == needed_silent_) return;
  silent_ = silent;
  needed_silent_ = needed;
  membership_.set_silent(silent, needed);
}

bool DrivenEngine::stop(Time now) {
  if (std::exchange(stopped_, true)) return false;
  engine_.abort(now);
  quiet_ = false;
  return true;
}

void DrivenEngine::abort_for_good(const std::string& reason, Time now) {
  engine_.abort_for_good(rank_, reason, now);
  quiet_ = false;
}

Time DrivenEngine::last_heard(Rank of_job) const {
  const Rank own = line_.own_rank(of_job);
  return own == kUnknownRank ? Time{} : engine_.endpoint().peers().last_heard(own);
}

}  // namespace tarpon
