// Ranks that are dead: nothing is waited for, sent to, or taken from them any more. And ranks that
// are silent: bounded operations do not wait for them.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {

void Endpoint::peer_dead(Rank peer, Time now) {
  State& s = *state_;
  if (peer >= s.options.world_size || peer == s.options.rank || s.dead[peer]) return;
  s.latest = now;
  s.dead[peer] = true;
  if (!s.silent[peer]) --s.live;
  s.silent[peer] = false;
  std::erase_if(s.control, [peer](const ControlDue& due) { return due.peer == peer; });
  std::erase_if(s.retained_due, [peer](const RetainedDue& due) { return due.peer == peer; });
  for (const auto& channel : s.channels) {
    channel->closed_below_of[peer] = channel->next_number;
    s.release_kept(*channel);
  }
  for (Operation* operation : s.open_operations) {
    s.leave_out(*operation, peer);
    s.start_clock(*operation, now);  // half of fewer ranks
  }
  s.timer = now;
}

void Endpoint::peer_silent(Rank peer, bool silent, Time now) {
  State& s = *state_;
  if (peer >= s.options.world_size || peer == s.options.rank || s.dead[peer]) return;
  if (s.silent[peer] == silent) return;
  s.latest = now;
  s.silent[peer] = silent;
  s.live = silent ? s.live - 1 : s.live + 1;
  if (!silent) return;
  for (Operation* operation : s.open_operations) {
    if (!operation->bounded) continue;
    s.leave_out(*operation, peer);
    s.start_clock(*operation, now);
  }
  s.timer = now;
}

/// What `peer` has sent of the operation stays; the rest is missing.
void Endpoint::State::leave_out(Operation& operation, Rank peer) {
  answered(operation, peer);
  operation.peers[peer].ready_at = kNever;
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    if (dead[peer]) {
      apply_grant(operation, i, peer, TARPON_CREDIT_COMPLETE);
    } else if (SendMessage* send = stage.send_to(peer)) {
      send->done = true;  // not confirmed: it may ask for this once it is back
    }
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr) continue;
    message->granted = message->slots;  // paced credit is not spent on it
    if (stage.closed || message->final || message->delivered()) continue;
    message->final = true;
    message_ended(operation, stage, *message);
  }
}

}  // namespace tarpon
