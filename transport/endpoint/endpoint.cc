// Operations: opening, numbering, closing, retention.
#include "transport/endpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

constexpr Duration kLeastPatience = 1ms;  // a wake-up may take as long
constexpr std::size_t kRecentTags = 1024;

/// What all peers may send unasked of the operations that one tag may have open.
std::size_t unasked_cells(const EndpointOptions& options) {
  return std::size_t{options.initial_credit} * options.world_size * options.window;
}

}  // namespace

Endpoint::State::State(const EndpointOptions& given, const PortCapabilities& port)
    : options(given),
      max_payload(port.max_payload),
      granter({.most_bytes = port.receive_bytes,
               .least_bytes = std::uint64_t{32} * (TARPON_HEADER_BYTES + port.max_payload),
               .rule = given.inflow,
               .most_senders = std::min<std::uint32_t>(15, given.world_size - 1u)},
              given.initial_credit),
      inflow(granter.inflow()),
      clocks(given.world_size),
      advertised_by(given.world_size, 0),
      standings(given.world_size),
      liveness(given.world_size),
      lateness(standings),
      tags({.world_size = given.world_size,
            .retain_bytes = given.retain_bytes,
            .remembered_tags = given.remembered_tags}),
      closed_told(given.world_size),
      early({.world_size = given.world_size,
             .operations = given.early_operations,
             .packets_per_peer = given.initial_credit,
             .cells = unasked_cells(given),
             .cell_bytes = TARPON_HEADER_BYTES + port.max_payload}),
      control(given.world_size, standings),
      journal(given.recorder, given.world_size),
      passed_news(given.rank, given.world_size, max_entries(), tags, standings),
      writer(options, clocks, tags, inflow, counters),
      sender(options, port, writer, counters),
      receiver({.options = options,
                .granter = granter,
                .control = control,
                .journal = journal,
                .counters = counters}) {}

Operation* Endpoint::State::find(OperationHandle handle) {
  if (handle.index >= operations.size()) return nullptr;
  Operation* operation = operations[handle.index].get();
  return operation->handle == handle ? operation : nullptr;
}

Operation* Endpoint::State::find_open(Channel& channel, std::uint32_t number) {
  for (Operation* operation : channel.open) {
    if (operation->number == number) return operation;
  }
  return nullptr;
}

void Endpoint::State::tell(const Operation& operation, const Event& event) {
  journal.tell(operation, event, latest);
}

void Endpoint::State::open(Operation& operation, Channel& channel, Time now) {
  granter.opened(operation, now);
  // Where round trips are short nobody waits for long.
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
  // Whoever has closed it has nothing of ours: what waits here for us to begin does not change
  // that. But where it never began there is no result without us; where that may be, it is asked.
  for (Rank peer = 0; peer < options.world_size && operation.fetches_when_late; ++peer) {
    const bool aborted = channel.early_aborts_of[peer].contains(operation.number);
    const bool takes_part = !standings.excludes(peer, operation.tag, operation.number);
    if (passed(peer) && takes_part && !aborted &&
        !early.has_expired(operation.tag, operation.number, peer)) {
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
    if (standings.is_silent(peer)) leave_out(operation, peer, false);
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

/// Some peer is further, or gone.
void Endpoint::State::release_passed(Channel& channel) {
  if (channel.kept.empty() && !channel.open.empty()) return;
  // A rank that has left may ask for those that it has made and not passed, [first, end).
  std::uint32_t passed = channel.next_number, first = passed, end = 0;
  bool serves_left = false;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank) continue;
    const std::uint32_t theirs = passed_by(channel, peer, standings);
    if (!standings.has_left(peer)) {
      if (before(theirs, passed)) passed = theirs;
    } else if (theirs != channel.next_number) {
      const std::uint32_t made = standings.made(peer, channel.tag);
      if (before(theirs, first)) first = theirs;
      if (!serves_left || before(end, made)) end = made;
      serves_left = true;
    }
  }
  tags.release(channel, before(first, passed) ? first : passed);
  if (serves_left && before(end, passed)) tags.release(channel, end, passed);
  if (all_are_through(channel)) passed_tags.push_back(channel.tag);
}

/// Whether nobody is at an operation of this tag, or late: neither a peer nor this rank.
bool Endpoint::State::all_are_through(const Channel& channel) const {
  if (!channel.open.empty()) return false;
  if (channel.lost) return true;  // nothing of it is to be had here
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer != options.rank && passed_by(channel, peer, standings) != channel.next_number)
      return false;
  }
  return true;
}

/// Nobody can ask about these tags any more.
void Endpoint::State::forget_passed_tags() {
  for (const std::uint32_t tag : early.take_stale_tags()) passed_tags.push_back(tag);
  for (const std::uint32_t tag : passed_tags) {
    Channel* const channel = tags.find(tag);
    if (channel == nullptr || !all_are_through(*channel)) continue;
    if (!early.has(tag)) tags.forget(*channel);
  }
  passed_tags.clear();
}

void Endpoint::State::end(Operation& operation, std::unique_ptr<Retained> retained,
                          std::uint64_t ranks, std::optional<std::uint32_t> abort_reason) {
  sender.measure_flows(operation, abort_reason.has_value());
  receiver.release(operation, latest);
  Channel& channel = *tags.find(operation.tag);
  if (retained != nullptr) {
    tags.retain(channel, {.number = operation.number,
                          .slot_bytes = operation.slot_bytes,
                          .epoch = operation.epoch,
                          .signature_hash = operation.signature_hash,
                          .marked = operation.marks.any(),
                          .data = std::move(retained)});
  }
  channel.unproven &= abort_reason.has_value();  // a result proves it
  channel.late_packets += operation.late_packets;
  channel.remember({.aborted = abort_reason.has_value(),
                    .number = operation.number,
                    .reason = abort_reason.value_or(0),
                    .ranks = ranks,
                    .marks = operation.marks,
                    .epoch = operation.epoch,
                    .signature = operation.signature},
                   std::size_t{2} * options.window);
  // After a mismatch more has to be told than an ABORT does.
  if (abort_reason && *abort_reason != TARPON_ABORT_MISMATCH) {
    channel.remember_abort(operation.number, *abort_reason, ranks);
  }
  const std::uint32_t number = operation.number;
  std::erase(channel.open, &operation);
  std::erase(open_operations, &operation);
  journal.forget(operation.handle);
  ++operation.handle.generation;
  free_operations.push_back(operation.handle.index);
  passed_news.rose(channel, latest);
  timer = std::min(timer, passed_news.next());
  release_passed(channel);
  if (!abort_reason) tell_owners(channel, number, ranks);
}

/// Tells the absent owners that this rank has closed `operation`. An older open operation of the
/// tag keeps `closed_below` from telling it.
void Endpoint::State::tell_owners(const Channel& channel, std::uint32_t operation,
                                  std::uint64_t absent) {
  if (!before(channel.lowest_open(), operation)) return;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if ((absent >> peer & 1) == 0 || peer == options.rank || standings.is_dead(peer)) continue;
    control.push(ControlDue{.type = TARPON_CLOSED,
                            .peer = peer,
                            .tag = channel.tag,
                            .operation = operation,
                            .contributors = absent});
  }
}

Endpoint::Endpoint(const EndpointOptions& options, const PortCapabilities& port)
    : state_(std::make_unique<State>(options, port)) {
  require(options.rank < options.world_size, "rank is below the world size");
  require(options.world_size <= 64, "at most 64 ranks");
  require(port.max_payload >= TARPON_MIN_PAYLOAD, "the port carries the smallest slot of a job");
}

Endpoint::~Endpoint() = default;

bool Endpoint::can_submit(std::uint32_t tag) const {
  const Channel* channel = state_->tags.find(tag);
  if (channel == nullptr) return true;
  const std::uint32_t window = channel->unproven ? 1 : state_->options.window;
  return channel->next_number - channel->lowest_open() < window;
}

bool Endpoint::is_lost(std::uint32_t tag) const {
  return state_->tags.is_lost(tag);
}

std::uint32_t Endpoint::next_number(std::uint32_t tag) const {
  return state_->tags.next_number(tag);
}

std::vector<std::uint32_t> Endpoint::tags() const {
  std::vector<std::uint32_t> result;
  for (const auto& channel : state_->tags.active()) result.push_back(channel->tag);
  for (const std::uint32_t tag : state_->tags.recent(kRecentTags)) result.push_back(tag);
  return result;
}

std::uint32_t Endpoint::lowest_open(std::uint32_t tag) const {
  return state_->tags.lowest_open(tag);
}

OperationHandle Endpoint::submit(const OperationSpec& spec, Time now) {
  State& s = *state_;
  s.latest = now;
  require(can_submit(spec.tag), "submit() within the window");
  require(spec.slot_bytes > 0 && spec.slot_bytes <= s.max_payload, "slot fits the port");
  require(!spec.stages.empty() && spec.stages.size() <= TARPON_MAX_STAGES, "1 to 4 stages");
  for (const StageSpec& stage : spec.stages) {
    // A bounded result is retained as one range.
    const auto ranged = [](const auto& message) { return !message.ranges.empty(); };
    const bool any = std::any_of(stage.sends.begin(), stage.sends.end(), ranged) ||
                     std::any_of(stage.receives.begin(), stage.receives.end(), ranged);
    require(!any || !spec.bounded, "ranges in exact operations");
  }
  if (s.free_operations.empty()) {
    auto fresh = std::make_unique<Operation>();
    fresh->handle.index = static_cast<std::uint32_t>(s.operations.size());
    s.free_operations.reserve(s.operations.size() + 1);
    s.operations.push_back(std::move(fresh));
    s.free_operations.push_back(s.operations.back()->handle.index);
  }
  Operation& operation = *s.operations[s.free_operations.back()];
  prepare(operation, spec, s.options, now);
  s.begin(operation, spec, now);
  return operation.handle;
}

/// Takes the number for a prepared operation. What fails from here on would leave this rank one
/// number ahead of its peers: it ends the process.
void Endpoint::State::begin(Operation& operation, const OperationSpec& spec, Time now) noexcept {
  free_operations.pop_back();
  forget_passed_tags();
  Channel& channel = tags.activate(spec.tag);
  if (channel.open.empty()) channel.late_packets = 0;  // of operations that taught nothing
  operation.number = channel.next_number++;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    // One that has left may still be at an operation that it has made.
    if (standings.is_dead(peer)) channel.closed_below_of[peer] = channel.next_number;
  }
  sender.choose_flows(operation, spec);
  operation.opened = now;
  journal.note(RecordKind::opened, operation, kNoPeer, now, operation.signature_hash);
  channel.open.push_back(&operation);
  open_operations.push_back(&operation);
  open(operation, channel, now);
  liveness.watch(now);
}

void Endpoint::advance(OperationHandle handle, std::uint8_t stage, std::uint32_t ready) {
  Operation* operation = state_->find(handle);
  require(operation != nullptr && stage < operation->stage_count, "advance() of an open operation");
  for (SendMessage& send : operation->stages[stage].sends) send.ready = std::max(send.ready, ready);
  state_->lateness.look(*operation, state_->latest);
}

void Endpoint::advance(OperationHandle handle, std::uint8_t stage, Rank peer, std::uint32_t ready) {
  Operation* operation = state_->find(handle);
  require(operation != nullptr && stage < operation->stage_count, "advance() of an open operation");
  SendMessage* const send = operation->stages[stage].send_to(peer);
  require(send != nullptr, "advance() of a message");
  send->ready = std::max(send->ready, ready);
  state_->lateness.look(*operation, state_->latest);
}

bool Endpoint::may_retain(std::uint64_t bytes) const {
  return state_->tags.may_retain(bytes);
}

std::uint64_t Endpoint::holding_back() const {
  const Channel* oldest = nullptr;
  for (const auto& channel : state_->tags.active()) {
    if (channel->kept.empty()) continue;
    if (oldest == nullptr || channel->kept.front().order < oldest->kept.front().order) {
      oldest = channel.get();
    }
  }
  std::uint64_t ranks = 0;
  for (Rank peer = 0; peer < state_->options.world_size && oldest != nullptr; ++peer) {
    if (peer == state_->options.rank) continue;
    const std::uint32_t passed = passed_by(*oldest, peer, state_->standings);
    if (!before(oldest->kept.front().number, passed)) ranks |= 1ull << peer;
  }
  return ranks;
}

EndpointMemory Endpoint::memory() const {
  const State& s = *state_;
  EndpointMemory result;
  result.active_tags = static_cast<std::uint32_t>(s.tags.active().size());
  result.retained_entries = s.tags.retained_entries();
  result.retained_bytes = s.tags.retained_bytes();
  result.early_operations = static_cast<std::uint32_t>(s.early.operations());
  result.parked = static_cast<std::uint32_t>(s.early.parked());
  return result;
}

void Endpoint::close(OperationHandle handle, std::unique_ptr<Retained> retained,
                     std::uint64_t absent) {
  Operation* operation = state_->find(handle);
  require(operation != nullptr, "close() of an open operation");
  state_->end(*operation, std::move(retained), absent);
  state_->forget_passed_tags();
}

void Endpoint::abort(OperationHandle handle, std::uint32_t reason, std::uint64_t ranks) {
  Operation* operation = state_->find(handle);
  require(operation != nullptr && ranks != 0, "abort() of an open operation, for some rank");
  for (Rank peer = 0; peer < state_->options.world_size; ++peer) {
    if (peer == state_->options.rank) continue;
    state_->control.push(ControlDue{.type = TARPON_ABORT,
                                    .peer = peer,
                                    .tag = operation->tag,
                                    .operation = operation->number,
                                    .slot = reason,
                                    .signature_hash = operation->signature_hash,
                                    .contributors = ranks});
  }
  state_->end(*operation, nullptr, ranks, reason);
  state_->forget_passed_tags();
}

MessageProgress Endpoint::progress(OperationHandle handle, std::uint8_t stage, Rank peer) const {
  Operation* operation = state_->find(handle);
  require(operation != nullptr && stage < operation->stage_count,
          "progress() of an open operation");
  MessageProgress result;
  if (peer >= state_->options.world_size) return result;
  result.heard = operation->peers[peer].heard && !operation->peers[peer].disagrees;
  if (result.heard) result.begun = operation->peers[peer].begun;
  if (const ReceiveMessage* message = operation->stages[stage].receive_from(peer)) {
    result.slots = message->slots;
    result.end = message->presence.end();
    result.received = message->presence.count() - message->given_up;
    const auto here = [message](std::uint32_t slot) {
      const bool given_up = message->last_given_up && slot + 1 == message->slots;
      return !given_up && message->presence.contains(slot);
    };
    result.bytes = message->lengths.sum(result.received, here);
    result.all_bytes = message->lengths.sum(message->slots, [](std::uint32_t) { return true; });
  }
  return result;
}

std::uint16_t Endpoint::stage_time(OperationHandle handle, Rank peer) const {
  Operation* operation = state_->find(handle);
  require(operation != nullptr && peer < state_->options.world_size,
          "stage_time() of an open operation and a rank");
  return operation->peers[peer].stage_time;
}

bool Endpoint::acknowledged(OperationHandle handle, std::uint8_t stage) const {
  Operation* operation = state_->find(handle);
  require(operation != nullptr && stage < operation->stage_count,
          "acknowledged() of an open operation");
  return operation->stages[stage].unacknowledged == 0;
}

std::uint64_t Endpoint::unacknowledged(OperationHandle handle) const {
  const Operation* operation = state_->find(handle);
  require(operation != nullptr, "unacknowledged() of an open operation");
  return unconfirmed_by(*operation);
}

bool Endpoint::sent(OperationHandle handle, std::uint8_t stage) const {
  Operation* operation = state_->find(handle);
  require(operation != nullptr && stage < operation->stage_count, "sent() of an open operation");
  for (const SendMessage& message : operation->stages[stage].sends) {
    if (message.done || message.next == message.slots) continue;
    if (operation->peers[message.peer].heard || message.next < message.grant) return false;
  }
  return true;
}

std::uint64_t Endpoint::take_late_packets(OperationHandle handle) {
  Operation* operation = state_->find(handle);
  require(operation != nullptr, "take_late_packets() of an open operation");
  Channel& channel = *state_->tags.find(operation->tag);
  return std::exchange(operation->late_packets, 0) + std::exchange(channel.late_packets, 0);
}

bool Endpoint::poll_event(Event& event) {
  return state_->journal.poll(event);
}

const EndpointCounters& Endpoint::counters() const {
  return state_->counters;
}

std::uint32_t Endpoint::flows() const {
  return state_->sender.flows();
}

bool Endpoint::idle() const {
  return state_->open_operations.empty() && state_->tags.retained_entries() == 0 &&
         state_->control.empty();
}

}  // namespace tarpon
