// How the parts of an endpoint are connected.
#include "transport/endpoint.h"

#include <algorithm>
#include <utility>

#include "transport/endpoint/contract.h"
#include "transport/endpoint/state.h"
#include "transport/pair_tag.h"
#include "transport/rate/rule_choice.h"

namespace tarpon {

Endpoint::State::State(const EndpointOptions& given, const PortCapabilities& port)
    : options(given),
      max_payload(port.max_payload),
      clocks(given.world_size),
      participants(given.world_size),
      tags({.world_size = given.world_size,
            .retain_bytes = given.retain_bytes,
            .remembered_tags = given.remembered_tags,
            .kept_tags = given.kept_tags}),
      control(given.world_size, participants),
      journal(given.recorder, given.world_size),
      early({.options = options,
             .clocks = clocks,
             .participants = participants,
             .tags = tags,
             .counters = counters},
            port.max_payload),
      past({.options = options,
            .clocks = clocks,
            .tags = tags,
            .control = control,
            .counters = counters}),
      passed({.options = options,
              .participants = participants,
              .tags = tags,
              .early = early,
              .alarm = alarm}),
      granter(make_inflow(given, port), given.initial_credit, given.world_size),
      writer(options, clocks, tags, granter.inflow(), counters),
      sender(options, port, writer, counters, participants, alarm),
      receiver({.options = options,
                .granter = granter,
                .control = control,
                .journal = journal,
                .counters = counters,
                .alarm = alarm}),
      lateness(participants, alarm),
      bounds(receiver, lateness, journal, alarm),
      announcer({.options = options,
                 .participants = participants,
                 .receiver = receiver,
                 .control = control,
                 .alarm = alarm}),
      parts{.options = options,
            .participants = participants,
            .clocks = clocks,
            .early = early,
            .control = control,
            .journal = journal,
            .counters = counters,
            .granter = granter,
            .receiver = receiver,
            .lateness = lateness,
            .bounds = bounds,
            .announcer = announcer,
            .alarm = alarm,
            .open = operations.states()},
      heartbeats({.options = options,
                  .participants = participants,
                  .clocks = clocks,
                  .tags = tags,
                  .operations = operations,
                  .passed = passed,
                  .control = control,
                  .journal = journal,
                  .writer = writer,
                  .alarm = alarm},
                 max_entries()),
      control_writer({.writer = writer,
                      .control = control,
                      .tags = tags,
                      .granter = granter,
                      .journal = journal,
                      .counters = counters},
                     max_entries()),
      router({.options = options,
              .participants = participants,
              .clocks = clocks,
              .granter = granter,
              .sender = sender,
              .tags = tags,
              .operations = operations,
              .early = early,
              .past = past,
              .passed = passed,
              .heartbeats = heartbeats,
              .journal = journal,
              .counters = counters},
             max_entries()) {
  require(port.multicasts || !given.multicast, "multicast over a port that multicasts");
}

std::size_t Endpoint::State::max_entries() const {
  static_assert(sizeof(tarpon_range) == sizeof(tarpon_passed));
  static_assert(kMaxRepairRanges == TARPON_MAX_PASSED);
  return std::min<std::size_t>(kMaxRepairRanges, max_payload / sizeof(tarpon_range));
}

void Endpoint::State::begin(OpenOperation& operation, const OperationSpec& spec,
                            Time now) noexcept {
  Operation& state = operation.state();
  passed.forget_tags();
  TagState& tag_state = tags.activate(spec.tag);
  if (tag_state.open.empty()) tag_state.late_packets = 0;  // of operations that taught nothing
  state.number = tag_state.next_number++;
  tag_state.wrapped |= tag_state.next_number == 0;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    // A rank that has left may still be at an operation that it has made.
    const bool none = participants.is_dead(peer) || (ranks_of_tag(spec.tag) & bit(peer)) == 0;
    if (none) tag_state.closed_below_of[peer] = tag_state.next_number;
  }
  sender.choose_flows(state, spec);
  state.opened = now;
  journal.note(RecordKind::opened, state, kNoPeer, now, state.signature_hash);
  tag_state.open.push_back({state.number, &operation});
  operations.add(operation);
  operation.begin(tag_state, now);
  heartbeats.watch(now);
}

void Endpoint::State::end(OpenOperation& operation, std::unique_ptr<Retained> retained,
                          std::uint64_t ranks, std::optional<std::uint32_t> abort_reason) {
  Operation& state = operation.state();
  sender.measure_flows(state, abort_reason.has_value());
  receiver.release(state, latest);
  TagState& tag_state = *tags.find(state.tag);
  if (retained != nullptr) {
    tags.retain(tag_state, {.number = state.number,
                            .slot_bytes = state.slot_bytes,
                            .epoch = state.epoch,
                            .signature_hash = state.signature_hash,
                            .marked = state.marks.any(),
                            .data = std::move(retained)});
  }
  tag_state.unproven &= abort_reason.has_value();  // a result proves it
  tag_state.late_packets += state.late_packets;
  tag_state.remember({.aborted = abort_reason.has_value(),
                      .number = state.number,
                      .reason = abort_reason.value_or(0),
                      .ranks = ranks,
                      .marks = state.marks,
                      .epoch = state.epoch,
                      .signature = state.signature},
                     std::size_t{2} * options.window);
  // After a mismatch a peer has to be told more than an ABORT says.
  if (abort_reason && *abort_reason != TARPON_ABORT_MISMATCH) {
    tag_state.remember_abort(state.number, *abort_reason, ranks);
  }
  std::erase_if(tag_state.open,
                [&](const TagState::Open& one) { return one.operation == &operation; });
  journal.forget(state.handle);
  operations.remove(operation);
  heartbeats.tell_progress(tag_state, latest);
  passed.release(tag_state);
  if (!abort_reason) past.tell_owners(tag_state, state.number, ranks);
}

Endpoint::Endpoint(const EndpointOptions& options, const PortCapabilities& port)
    : state_(std::make_unique<State>(options, port)) {
  require(options.rank < options.world_size, "rank is below the world size");
  require(options.world_size <= 64, "at most 64 ranks");
  require(port.max_payload >= TARPON_MIN_PAYLOAD, "the port carries the smallest slot of a job");
}

Endpoint::~Endpoint() = default;

OperationHandle Endpoint::submit(const OperationSpec& spec, Time now) {
  State& s = *state_;
  s.latest = now;
  require(tags().can_submit(spec.tag), "submit() within the window");
  require(spec.slot_bytes > 0 && spec.slot_bytes <= s.max_payload, "slot fits the port");
  require(!spec.stages.empty() && spec.stages.size() <= TARPON_MAX_STAGES, "1 to 4 stages");
  for (const StageSpec& stage : spec.stages) {
    // A bounded result is retained as one range.
    const auto ranged = [](const auto& message) { return !message.ranges.empty(); };
    const bool any = std::any_of(stage.sends.begin(), stage.sends.end(), ranged) ||
                     std::any_of(stage.receives.begin(), stage.receives.end(), ranged);
    require(!any || !spec.bounded, "ranges in exact operations");
  }
  OpenOperation& operation = s.operations.spare(s.parts);
  prepare(operation.state(), spec, s.options, now);
  s.begin(operation, spec, now);
  return operation.state().handle;
}

void Endpoint::advance(OperationHandle handle, std::uint8_t stage, std::uint32_t ready) {
  Operation* const operation = state_->find(handle);
  require(operation != nullptr && stage < operation->stage_count, "advance() of an open operation");
  for (SendMessage& send : operation->stages[stage].sends) send.advance(ready);
  state_->lateness.look(*operation, state_->latest);
}

void Endpoint::advance(OperationHandle handle, std::uint8_t stage, Rank peer, std::uint32_t ready) {
  Operation* const operation = state_->find(handle);
  require(operation != nullptr && stage < operation->stage_count, "advance() of an open operation");
  SendMessage* const send = operation->stages[stage].send_to(peer);
  require(send != nullptr, "advance() of a message");
  send->advance(ready);
  state_->lateness.look(*operation, state_->latest);
}

NearWork Endpoint::near(OperationHandle handle) {
  OpenOperation* const operation = state_->operations.find(handle);
  require(operation != nullptr, "near() of an open operation");
  return {*operation, state_->receiver};
}

EndpointMemory Endpoint::memory() const {
  const State& s = *state_;
  EndpointMemory result;
  result.open_operations = static_cast<std::uint32_t>(s.operations.all().size());
  result.queued = static_cast<std::uint32_t>(s.control.size());
  result.active_tags = static_cast<std::uint32_t>(s.tags.active().size());
  result.retained_entries = s.tags.retained_entries();
  result.retained_bytes = s.tags.retained_bytes();
  result.early_operations = static_cast<std::uint32_t>(s.early.packets().operations());
  result.parked = static_cast<std::uint32_t>(s.early.packets().parked());
  return result;
}

void Endpoint::close(OperationHandle handle, std::unique_ptr<Retained> retained,
                     std::uint64_t absent) {
  OpenOperation* const operation = state_->operations.find(handle);
  require(operation != nullptr, "close() of an open operation");
  state_->end(*operation, std::move(retained), absent);
  state_->passed.forget_tags();
}

void Endpoint::abort(OperationHandle handle, std::uint32_t reason, std::uint64_t ranks) {
  OpenOperation* const operation = state_->operations.find(handle);
  require(operation != nullptr && ranks != 0, "abort() of an open operation, for some rank");
  const Operation& state = operation->state();
  for (Rank peer = 0; peer < state_->options.world_size; ++peer) {
    if (peer == state_->options.rank || (ranks_of_tag(state.tag) & bit(peer)) == 0) continue;
    state_->control.push(ControlDue{.type = TARPON_ABORT,
                                    .peer = peer,
                                    .tag = state.tag,
                                    .operation = state.number,
                                    .reason = reason,
                                    .signature_hash = state.signature_hash,
                                    .ranks = ranks});
  }
  state_->end(*operation, nullptr, ranks, reason);
  state_->passed.forget_tags();
}

OperationView Endpoint::view(OperationHandle handle) const {
  return {state_->find(handle), state_->participants, state_->options.rank};
}

TagsView Endpoint::tags() const {
  State& s = *state_;
  return TagsView({s.options, s.participants, s.tags, s.early});
}

PeersView Endpoint::peers() const {
  return {state_->options, state_->participants, state_->clocks, state_->sender};
}

std::uint64_t Endpoint::take_late_packets(OperationHandle handle) {
  Operation* const operation = state_->find(handle);
  require(operation != nullptr, "take_late_packets() of an open operation");
  TagState& tag_state = *state_->tags.find(operation->tag);
  return std::exchange(operation->late_packets, 0) + std::exchange(tag_state.late_packets, 0);
}

void Endpoint::send(const AgreementPacket& packet) {
  state_->control.push(packet);
}

std::vector<AgreementPacket> Endpoint::take_agreements() {
  return state_->router.take_agreements();
}

bool Endpoint::poll_event(Event& event) {
  return state_->journal.poll(event);
}

const EndpointCounters& Endpoint::counters() const {
  return state_->counters;
}

void Endpoint::set_ends(OperationHandle handle, const StageEnds& ends, Time now) {
  OpenOperation* const operation = state_->operations.find(handle);
  require(
      operation != nullptr && operation->state().bounded && operation->state().clock.has_started(),
      "set_ends() of a bounded operation whose clock has started");
  state_->latest = now;
  operation->set_ends(ends, now);
}

void Endpoint::end_stage(OperationHandle handle, std::size_t stage, Time now) {
  OpenOperation* const operation = state_->operations.find(handle);
  require(
      operation != nullptr && operation->state().bounded && stage < operation->state().stage_count,
      "end_stage() of a stage of a bounded operation");
  state_->latest = now;
  state_->bounds.end(operation->state(), stage, now);
}

void Endpoint::peer_dead(Rank peer, Time now) {
  State& s = *state_;
  if (!s.is_live_peer(peer)) return;
  s.latest = now;
  s.participants.set_dead(peer);
  s.control.drop(peer);
  for (const auto& tag_state : s.tags.active()) {
    tag_state->closed_below_of[peer] = tag_state->next_number;
    s.passed.release(*tag_state);
  }
  s.passed.forget_tags();
  for (OpenOperation* operation : s.operations.all()) {
    operation->leave_out(peer, true, now);
    operation->fewer_take_part(now);  // half of fewer ranks
  }
  s.alarm.no_later_than(now);
}

void Endpoint::peer_left(Rank peer, std::span<const NextNumber> next_numbers, Time now) {
  State& s = *state_;
  if (!s.is_live_peer(peer)) return;
  s.latest = now;
  s.participants.set_left(peer, {next_numbers.begin(), next_numbers.end()});
  for (const auto& tag_state : s.tags.active()) s.passed.release(*tag_state);
  s.passed.forget_tags();
  for (OpenOperation* operation : s.operations.all()) {
    const bool excluded =
        s.participants.excludes(peer, operation->state().tag, operation->state().number);
    if (excluded) operation->leave_out(peer, true, now);
    operation->fewer_take_part(now);
  }
  s.alarm.no_later_than(now);
}

void Endpoint::set_rejoining(std::uint64_t ranks, Time now) {
  State& s = *state_;
  s.latest = now;
  const std::uint64_t known = s.participants.rejoining();
  s.participants.set_rejoining(ranks & ~bit(s.options.rank));
  for (OpenOperation* operation : s.operations.all()) {
    if (!operation->state().bounded) continue;
    for (const Rank peer : ranks_of(s.participants.rejoining() & ~known)) {
      // A peer that has begun the operation has ended it: it still answers requests for its data.
      if (!operation->state().peers[peer].heard()) operation->leave_out(peer, false, now);
    }
    operation->fewer_take_part(now);
  }
  s.alarm.no_later_than(now);
}

void Endpoint::snapshot(EndpointSnapshot& out) const {
  const State& s = *state_;
  out.open = static_cast<std::uint32_t>(s.operations.all().size());
  const std::uint32_t shown = std::min(out.open, EndpointSnapshot::kOperations);
  for (std::uint32_t i = 0; i < shown; ++i) {
    out.operations[i] = snapshot_of(*s.operations.states()[i], s.options.rank);
  }
  const auto ranks =
      static_cast<Rank>(std::min<std::size_t>(s.options.world_size, out.last_heard.size()));
  for (Rank peer = 0; peer < ranks; ++peer) out.last_heard[peer] = s.clocks.heard(peer);
  out.counters = s.counters;
}

void Endpoint::on_receive(Time now, std::span<const RxPacket> packets) {
  State& s = *state_;
  s.latest = now;
  if (packets.empty()) return;
  s.router.receive(packets, now);
  s.granter.inflow().judge(now);
  s.receiver.give_credit(s.operations.states(), now);
  s.passed.forget_tags();
}

std::size_t Endpoint::poll_transmit(Time now, std::span<TxPacket> frames) {
  State& s = *state_;
  std::size_t used = s.control_writer.emit_control(now, frames);
  used += s.heartbeats.emit(now, frames.subspan(used));
  used += s.control_writer.emit_agreements(now, frames.subspan(used));
  used += s.sender.send_retained(now, s.control, s.tags, frames.subspan(used));
  used += s.sender.send(now, s.operations.states(), frames.subspan(used));
  return used;
}

void Endpoint::on_timer(Time now) {
  State& s = *state_;
  s.latest = now;
  if (now < next_deadline()) return;
  Time next = kNever;
  for (OpenOperation* operation : s.operations.all()) {
    next = std::min(next, operation->on_time(now));
  }
  s.alarm.reset(next);
  s.heartbeats.run(now);
  s.receiver.give_credit(s.operations.states(), now);
}

// Packets that are due are polled before the driver sleeps; only time is reported here.
Time Endpoint::next_deadline() const {
  return state_->alarm.at();
}

}  // namespace tarpon
