// What an endpoint tells its caller, and the parts that it is made of.
#include "transport/endpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "transport/endpoint/state.h"
#include "transport/rate/rule_choice.h"

namespace tarpon {
namespace {

constexpr std::size_t kRecentTags = 1024;

/// Returns how many slots all peers may send unasked, of the operations that one tag may have open.
std::size_t unasked_cells(const EndpointOptions& options) {
  return std::size_t{options.initial_credit} * options.world_size * options.window;
}

}  // namespace

Endpoint::State::State(const EndpointOptions& given, const PortCapabilities& port)
    : options(given),
      max_payload(port.max_payload),
      granter(make_inflow(given, port), given.initial_credit),
      inflow(granter.inflow()),
      clocks(given.world_size),
      advertised_by(given.world_size, 0),
      standings(given.world_size),
      liveness(given.world_size, given.silent_after),
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
      sender(options, port, writer, counters, standings),
      receiver({.options = options,
                .granter = granter,
                .control = control,
                .journal = journal,
                .counters = counters}) {
  require(port.multicasts || !given.multicast, "multicast over a port that multicasts");
}

Operation* Endpoint::State::find(OperationHandle handle) {
  if (handle.index >= operations.size()) return nullptr;
  Operation* operation = operations[handle.index].get();
  return operation->handle == handle ? operation : nullptr;
}

void Endpoint::State::tell(const Operation& operation, const Event& event) {
  journal.tell(operation, event, latest);
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

std::vector<std::uint32_t> Endpoint::tags_begun_by_peers(std::uint32_t first) const {
  std::vector<std::uint32_t> tags;
  for (const NextNumber& early : state_->early.of_tags_from(first)) {
    if (early.number == next_number(early.tag)) tags.push_back(early.tag);
  }
  return tags;
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
                                    .reason = reason,
                                    .signature_hash = operation->signature_hash,
                                    .ranks = ranks});
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

void Endpoint::send(const AgreementPacket& packet) {
  state_->control.push(packet);
}

std::vector<AgreementPacket> Endpoint::take_agreements() {
  return std::exchange(state_->agreements, {});
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
