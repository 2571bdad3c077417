#include "transport/operation/operation.h"

#include <algorithm>

#include "transport/rank_mask.h"
#include "transport/wire/signature_hash.h"

namespace tarpon {
namespace {

void prepare_sends(Stage& stage, const StageSpec& spec, std::uint32_t slot_bytes) {
  stage.sends.resize(spec.sends.size());
  stage.unacknowledged = 0;
  for (std::size_t i = 0; i < spec.sends.size(); ++i) {
    SendMessage& message = stage.sends[i];
    message.reset(spec.sends[i], slot_bytes, spec.ready);
    if (stage.acknowledge && !message.is_done()) ++stage.unacknowledged;
    stage.send_of[message.peer()] = static_cast<std::uint16_t>(i);
  }
}

void prepare_receives(Stage& stage, const StageSpec& spec, std::uint32_t slot_bytes, bool exact,
                      Time now) {
  const auto if_late = [](const ReceiveSpec& one) { return one.if_late; };
  const auto spares = std::count_if(spec.receives.begin(), spec.receives.end(), if_late);
  stage.receives.reserve(spec.receives.size());  // they do not move when spares join them
  stage.receives.resize(spec.receives.size() - static_cast<std::size_t>(spares));
  stage.spares.resize(static_cast<std::size_t>(spares));
  stage.open_receives = 0;
  std::size_t used = 0, spare = 0;
  for (const ReceiveSpec& one : spec.receives) {
    ReceiveMessage& message = one.if_late ? stage.spares[spare++] : stage.receives[used++];
    message.reset(one, slot_bytes, exact || stage.repair, now);
    if (!one.if_late && message.slots() != 0) ++stage.open_receives;
  }
  stage.tails_missing = stage.open_receives;
}

/// Receivers give credit in the order of their messages. What leaves by multicast needs the credit
/// of all at one time, so all of them take the order of the ranks.
void order_receives(Stage& stage, bool multicast) {
  if (multicast) {
    std::sort(stage.receives.begin(), stage.receives.end(),
              [](const ReceiveMessage& a, const ReceiveMessage& b) { return a.peer() < b.peer(); });
  }
  for (std::size_t i = 0; i < stage.receives.size(); ++i) {
    stage.receive_of[stage.receives[i].peer()] = static_cast<std::uint16_t>(i);
  }
}

constexpr Duration kShortestDelay = 100us;

/// Shortens the repair delays to fit the bound: lost data has to be asked for a few times before
/// the operation ends.
void shorten_delays(Operation& operation, const OperationSpec& spec) {
  const auto at_most = [](Duration& delay, Duration most) {
    delay = std::min(delay, std::max(most, kShortestDelay));
  };
  at_most(operation.gap_delay, spec.bound / 64);
  at_most(operation.quiet_delay, spec.bound / 32);
  // Messages come in turn. A message that is silent for a shorter time usually waits for its turn.
  at_most(operation.silence_delay, spec.bound / 8);
  at_most(operation.repair_delay_max, spec.bound / 8);
}

}  // namespace

void prepare(Operation& operation, const OperationSpec& spec, const EndpointOptions& options,
             Time now) {
  const std::uint16_t world_size = options.world_size;
  operation.tag = spec.tag;
  operation.slot_bytes = spec.slot_bytes;
  operation.epoch = spec.epoch;
  operation.latest_epoch = spec.epoch.number;
  operation.signature = spec.signature;
  operation.signature_hash = signature_hash(spec.signature);
  operation.bounded = spec.bounded;
  operation.late = false;
  operation.begun_late = false;
  operation.deadline = spec.deadline;
  operation.deadline_told = false;
  operation.clock = BeginClock(std::min(spec.began, now));
  operation.hold = {};
  operation.grace = {};
  operation.terms = spec.terms;
  operation.terms_by_peer = spec.terms_by_peer;
  operation.awaits_confirmations = spec.awaits_confirmations;
  operation.tells_terms = (spec.bounded && spec.tells_terms) || !spec.terms_by_peer.empty();
  operation.near = spec.near;
  operation.awaited_near = spec.near;
  operation.stage_time = spec.stage_time;
  operation.marks = {};
  operation.asks_if_late = spec.bounded && spec.asks_if_late;
  if (spec.bounded && spec.marked) operation.marks.ranks = 1ull << options.rank;
  operation.inquiry = {};
  operation.gap_delay = options.gap_delay;
  operation.quiet_delay = options.quiet_delay;
  operation.silence_delay = options.quiet_delay;
  operation.repair_delay_max = options.repair_delay_max;
  if (spec.bounded) shorten_delays(operation, spec);
  operation.peers.assign(world_size, PeerExchange{});
  operation.late_packets = 0;
  operation.stage_count = static_cast<std::uint32_t>(spec.stages.size());
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    const StageSpec& from = spec.stages[i];
    stage.repair = from.repair;
    stage.acknowledge = from.acknowledge;
    stage.closed = false;
    stage.last_arrival = Time{};
    stage.end = kNever;
    stage.held = false;
    stage.early = spec.bounded ? spec.early[i] : Duration::zero();
    stage.send_of.assign(world_size, kNoMessage);
    stage.receive_of.assign(world_size, kNoMessage);
    stage.multicast = {};
    stage.multicast.on = from.alike && options.multicast && from.sends.size() > 1;
    prepare_sends(stage, from, spec.slot_bytes);
    prepare_receives(stage, from, spec.slot_bytes, !spec.bounded, now);
    stage.awaits_caller = from.closed_by_caller;
    order_receives(stage, from.alike && options.multicast);
  }
}

std::uint64_t unconfirmed_by(const Operation& operation) {
  std::uint64_t ranks = 0;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    for (const SendMessage& message : operation.stages[i].sends) {
      if (operation.stages[i].acknowledge && !message.is_done()) ranks |= bit(message.peer());
    }
  }
  return ranks;
}

bool nothing_sent(const Operation& operation) {
  const std::vector<SendMessage>& sends = operation.stages[operation.stage_count - 1].sends;
  return std::all_of(sends.begin(), sends.end(), [](const auto& one) { return one.next() == 0; }) &&
         std::any_of(sends.begin(), sends.end(), [](const auto& one) { return one.slots() > 0; });
}

bool nothing_sent_yet(const Operation& operation) {
  const std::vector<SendMessage>& sends = operation.stages[operation.stage_count - 1].sends;
  return nothing_sent(operation) && std::any_of(sends.begin(), sends.end(), [](const auto& one) {
           return one.slots() > 0 && !one.is_done();
         });
}

bool holds_back(const Operation& operation, std::uint8_t stage) {
  return operation.inquiry.unanswered > 0 && stage + 1u == operation.stage_count &&
         nothing_sent_yet(operation);
}

OperationSnapshot snapshot_of(const Operation& operation, Rank self) {
  OperationSnapshot result;
  result.tag = operation.tag;
  result.operation = operation.number;
  result.stages = operation.stage_count;
  result.opened = operation.opened;
  result.deadline = operation.deadline;
  while (result.stage < operation.stage_count && operation.stages[result.stage].closed) {
    ++result.stage;
  }
  if (result.stage == operation.stage_count) {
    result.waiting = unconfirmed_by(operation);
  } else {
    for (const ReceiveMessage& message : operation.stages[result.stage].receives) {
      if (message.is_expected()) result.waiting |= bit(message.peer());
    }
    result.waiting |= operation.awaited_near;
  }
  for (Rank peer = 0; peer < operation.peers.size(); ++peer) {
    if (peer != self && !operation.peers[peer].heard()) result.silent |= bit(peer);
  }
  return result;
}

}  // namespace tarpon
