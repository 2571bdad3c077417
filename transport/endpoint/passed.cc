// Which operations the peers have passed.
#include <algorithm>

#include "transport/endpoint/state.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

void Endpoint::State::note_closed_below(Channel& channel, const tarpon_header& header, Time now) {
  const std::uint32_t below = closed_below(header);
  if (!before(channel.closed_below_of[header.sender], below)) return;
  note_passed(channel, header.sender, below, proves_end(channel, header), now);
}

/// `peer` says that all its operations below `below` are closed. Beyond the window that may be a
/// lie, or a broken header: it has to be `proven` by an answer to a question of this rank.
void Endpoint::State::note_passed(Channel& channel, Rank peer, std::uint32_t below, bool proven,
                                  Time now) {
  std::uint32_t& known = channel.closed_below_of[peer];
  if (!before(known, below)) return;
  if (!proven && below - known > options.window) return check_jump(channel, peer, now);
  known = below;
  for (const auto& [number, operation] : channel.open) {
    if (before(number, below)) peer_closed(*operation, peer, now);
  }
  release_passed(channel);
}

/// Whether the packet tells the end of the lowest open operation, and left its sender after this
/// rank's latest READY of it did.
bool Endpoint::State::proves_end(Channel& channel, const tarpon_header& header) {
  if (header.type != TARPON_CLOSED && header.type != TARPON_ABORT) return false;
  if (channel.open.empty() || channel.open.front().number != header.operation) return false;
  const PeerView& view = channel.open.front().operation->peers[header.sender];
  return view.readies > 0 && PeerClocks::echoes(header, view.ready_us, latest);
}

/// Asks `peer` for the end of the lowest open operation.
void Endpoint::State::check_jump(Channel& channel, Rank peer, Time now) {
  if (channel.open.empty()) return;  // the next operation asks, or a HEARTBEAT
  const Operation& operation = *channel.open.front().operation;
  PeerView& view = channel.open.front().operation->peers[peer];
  if (view.jump_checked != Time{} && now < view.jump_checked + operation.quiet_delay) return;
  view.jump_checked = now;
  view.readies = std::max(1u, view.readies);
  view.ready_at = now;
  timer = std::min(timer, now);
}

/// Handles the end of the operation at `peer`: it gets nothing more, and what it owes comes when
/// asked for, or never. `gone`: the peer has no result.
void Endpoint::State::peer_passed(Operation& operation, Rank peer, bool gone, Time now) {
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    apply_grant(operation, i, peer, TARPON_CREDIT_COMPLETE);
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr || stage.closed || message->final || message->delivered()) continue;
    // A bounded operation keeps nothing of its first stages.
    if (!gone && message->repair_below > 0 && (i > 0 || !operation.bounded)) {
      message->presume_all_lost(now - operation.gap_delay);
      timer = std::min(timer, now);
      continue;
    }
    // The peer sent its part of a later stage just before it closed: that may come after this news.
    if (!gone && i > 0) continue;
    receiver.give_up(operation, stage, *message, latest);
  }
}

}  // namespace tarpon
