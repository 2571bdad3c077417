// How an operation begins.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

constexpr Duration kLeastPatience = 1ms;  // a wake-up may take as long

}  // namespace

/// Takes the number for a prepared operation. A failure from here on would leave this rank one
/// number ahead of its peers: it ends the process.
void Endpoint::State::begin(Operation& operation, const OperationSpec& spec, Time now) noexcept {
  free_operations.pop_back();
  forget_passed_tags();
  Channel& channel = tags.activate(spec.tag);
  if (channel.open.empty()) channel.late_packets = 0;  // of operations that taught nothing
  operation.number = channel.next_number++;
  channel.wrapped |= channel.next_number == 0;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    // A rank that has left may still be at an operation that it has made.
    if (standings.is_dead(peer)) channel.closed_below_of[peer] = channel.next_number;
  }
  sender.choose_flows(operation, spec);
  operation.opened = now;
  journal.note(RecordKind::opened, operation, kNoPeer, now, operation.signature_hash);
  channel.open.push_back({operation.number, &operation});
  open_operations.push_back(&operation);
  open(operation, channel, now);
  liveness.watch(now);
}

void Endpoint::State::open(Operation& operation, Channel& channel, Time now) {
  granter.opened(operation, now);
  // Short round trips need no long waits.
  const Duration patience = std::max(kLeastPatience, inflow.timeout());
  operation.gap_delay = std::min(operation.gap_delay, patience);
  operation.quiet_delay = std::min(operation.quiet_delay, 2 * patience);
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    PeerView& view = operation.peers[peer];
    std::uint32_t most = 0;
    bool talks = false;
    for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
      Stage& stage = operation.stages[i];
      if (SendMessage* send = stage.send_to(peer)) {
        talks = true;
        send->grant = granter.unasked(advertised_by[peer]);
      }
      if (ReceiveMessage* receive = stage.receive_from(peer)) {
        talks = true;
        most = std::max(most, receive->slots);
      }
    }
    if (!talks || peer == options.rank) continue;
    // Where our DATA goes out at once and the peer needs no more than the initial credit, DATA
    // itself announces the operation; READY then only follows when nothing is heard.
    const SendMessage* first = operation.stages[0].send_to(peer);
    const bool implicit = first != nullptr && first->slots > 0 && first->ready > 0 &&
                          most <= options.initial_credit && inflow.advertised() == 0 &&
                          !operation.tells_terms;
    view.ready_at = implicit ? now + operation.quiet_delay : now;
  }
  const auto passed = [&](Rank peer) {
    return peer != options.rank && before(operation.number, channel.closed_below_of[peer]);
  };
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    const bool aborted = channel.early_aborts_of[peer].contains(operation.number);
    operation.begun_late |= aborted || (passed(peer) && !standings.is_dead(peer));
  }
  // A peer that has closed the operation has none of our data, even if its packets are parked here.
  for (Rank peer = 0; peer < options.world_size && operation.asks_if_late; ++peer) {
    if (peer != options.rank && has_ended(channel, peer, operation.number)) {
      become_late(operation, peer, now);
    }
  }
  const std::uint32_t repeated = adopt_early(operation, now);
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer != options.rank && standings.excludes(peer, operation.tag, operation.number)) {
      leave_out(operation, peer, true);
      continue;
    }
    if (!passed(peer)) continue;
    PeerView& view = operation.peers[peer];
    if (!view.heard) {
      view.begun = now;
      view.read_after = kUnknownAge;
    }
    // A peer that has passed an exact operation before this rank begins it has given it up. Its
    // answer to READY says why.
    if (operation.bounded) heard_from(operation, peer, {});
    peer_closed(operation, peer, now);
  }
  for (Rank peer = 0; peer < options.world_size && operation.bounded; ++peer) {
    const bool rejoins = standings.is_rejoining(peer) && !operation.peers[peer].heard;
    if (standings.is_silent(peer) || rejoins) leave_out(operation, peer, false);
  }
  // Stages in which nothing is to come are over at once.
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    if (stage.open_receives == 0 && !stage.closed) {
      receiver.close_stage(operation, stage, Closing::complete, latest);
    }
  }
  another_has_begun(operation);
  lateness.note_waiting(operation, repeated, now);
  timer = std::min(timer, now);
}

}  // namespace tarpon
