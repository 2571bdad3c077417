#include "transport/operation/operation.h"

#include <algorithm>

namespace tarpon {
namespace {

void prepare_sends(Stage& stage, const StageSpec& spec, std::uint32_t slot_bytes,
                   std::uint32_t initial_credit) {
  stage.sends.resize(spec.sends.size());
  stage.unacknowledged = 0;
  for (std::size_t i = 0; i < spec.sends.size(); ++i) {
    const SendSpec& from = spec.sends[i];
    SendMessage& to = stage.sends[i];
    to.peer = from.peer;
    to.source = from.source;
    to.lengths.assign(from.bytes, from.ranges, slot_bytes);
    to.slots = to.lengths.slots();
    to.ready = std::min(spec.ready, from.ready);
    to.next = 0;
    to.grant = initial_credit;
    to.done = to.slots == 0;
    to.repair_count = 0;
    to.requests = 0;
    if (stage.acknowledge && !to.done) ++stage.unacknowledged;
    stage.send_of[from.peer] = static_cast<std::uint16_t>(i);
  }
}

void prepare_receives(Stage& stage, const StageSpec& spec, std::uint32_t slot_bytes, bool exact,
                      Time now) {
  stage.receives.resize(spec.receives.size());
  stage.open_receives = 0;
  for (std::size_t i = 0; i < spec.receives.size(); ++i) {
    const ReceiveSpec& from = spec.receives[i];
    ReceiveMessage& to = stage.receives[i];
    to.peer = from.peer;
    to.sink = from.sink;
    to.lengths.assign(from.bytes, from.ranges, slot_bytes);
    to.slots = to.lengths.slots();
    to.presence.reset(to.slots);
    to.granted = 0;
    to.repair_below = exact || stage.repair ? to.slots : 0;
    to.asked_for = 0;
    to.written_off = 0;
    to.final = false;
    to.stripes = {};
    to.flows_known = false;
    to.gaps = 0;
    to.flows = {};
    to.given_up = 0;
    to.last_given_up = false;
    to.last_heard = now;
    to.gap_since = kNever;
    to.asked = now;
    to.granted_when_asked = 0;
    to.asks = 0;
    to.tail_seen = to.slots == 0;
    if (to.slots != 0) ++stage.open_receives;
  }
  stage.tails_missing = stage.open_receives;
}

/// Receivers give credit in the order of their messages. What leaves by multicast needs the credit
/// of all at one time, so that order is the same at all of them.
void order_receives(Stage& stage, bool multicast) {
  if (multicast) {
    std::sort(stage.receives.begin(), stage.receives.end(),
              [](const ReceiveMessage& a, const ReceiveMessage& b) { return a.peer < b.peer; });
  }
  for (std::size_t i = 0; i < stage.receives.size(); ++i) {
    stage.receive_of[stage.receives[i].peer] = static_cast<std::uint16_t>(i);
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
  at_most(operation.repair_delay_max, spec.bound / 8);
}

}  // namespace

// CRC-16/IBM-3740 ("CCITT-FALSE"): two signatures that differ within 16 bits in a row, in two bits
// or in an odd number of bits never have the same hash. So two calls that differ in one field other
// than the count never have the same hash, nor do two whose counts differ within 16 bits in a row.
std::uint16_t signature_hash(const Signature& signature) {
  constexpr std::uint32_t kPolynomial = 0x1021;
  std::uint32_t crc = 0xffff;
  for (const std::uint8_t byte : signature) {
    crc ^= std::uint32_t{byte} << 8;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? kPolynomial : 0);
    }
    crc &= 0xffff;
  }
  return static_cast<std::uint16_t>(crc);
}

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
  operation.began = std::min(spec.began, now);
  operation.read_after = {};
  operation.hold = {};
  operation.grace = {};
  operation.terms = spec.terms;
  operation.forwards = spec.forwards;
  operation.tells_terms = spec.bounded && spec.tells_terms;
  operation.stage_time = spec.stage_time;
  operation.marks = {};
  operation.asks_if_late = spec.bounded && spec.asks_if_late;
  if (spec.bounded && spec.marked) operation.marks.ranks = 1ull << options.rank;
  operation.inquiry = {};
  operation.started = kNever;
  operation.gap_delay = options.gap_delay;
  operation.quiet_delay = options.quiet_delay;
  operation.repair_delay_max = options.repair_delay_max;
  if (spec.bounded) shorten_delays(operation, spec);
  operation.peers.assign(world_size, PeerView{});
  operation.heard = 1;
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
    prepare_sends(stage, from, spec.slot_bytes, options.initial_credit);
    prepare_receives(stage, from, spec.slot_bytes, !spec.bounded, now);
    order_receives(stage, from.alike && options.multicast);
  }
}

std::uint64_t unconfirmed_by(const Operation& operation) {
  std::uint64_t ranks = 0;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    for (const SendMessage& message : operation.stages[i].sends) {
      if (operation.stages[i].acknowledge && !message.done) ranks |= 1ull << message.peer;
    }
  }
  return ranks;
}

bool nothing_sent(const Operation& operation) {
  const std::vector<SendMessage>& sends = operation.stages[operation.stage_count - 1].sends;
  return std::all_of(sends.begin(), sends.end(), [](const auto& one) { return one.next == 0; }) &&
         std::any_of(sends.begin(), sends.end(), [](const auto& one) { return one.slots > 0; });
}

bool nothing_sent_yet(const Operation& operation) {
  const std::vector<SendMessage>& sends = operation.stages[operation.stage_count - 1].sends;
  return nothing_sent(operation) && std::any_of(sends.begin(), sends.end(), [](const auto& one) {
           return one.slots > 0 && !one.done;
         });
}

bool holds_back(const Operation& operation, std::uint8_t stage) {
  return operation.inquiry.unanswered > 0 && stage + 1u == operation.stage_count &&
         nothing_sent_yet(operation);
}

}  // namespace tarpon
