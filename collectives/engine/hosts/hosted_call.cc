#include "collectives/engine/hosts/hosted_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tarpon {
namespace {

using hosts::CallState;
using hosts::Part;
using hosts::position;

constexpr std::array<Part, 3> kInSlices{Part::copy_in, Part::add_up, Part::copy_out};
constexpr std::array<Part, 2> kWhole{Part::copy_in, Part::copy_out};

}  // namespace

HostedCall::HostedCall(const Setting& setting, std::shared_ptr<PendingCall> call,
                       Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now)
    : RunningCall(setting, std::move(call), endpoint, submitted, now),
      calls_(calls),
      tag_(calls.tag(*hosts::host_tag(call_->arguments.tag))),
      self_(calls.group().self),
      local_(static_cast<std::uint32_t>(calls.group().ranks.size())),
      number_(call_->report.operation),
      plan_(call_->arguments, calls.group().memory.shape()),
      sums_({.type = call_->arguments.type,
             .function = call_->arguments.function,
             .custom = call_->arguments.custom,
             .ranks = local_}),
      from_(local_),
      heard_(bit(static_cast<Rank>(self_))),
      begun_at_(local_, kNever) {
  call_->report.algorithm = call_->arguments.algorithm;
  OperationSpec spec;
  spec.tag = call_->arguments.tag;
  spec.slot_bytes = setting.slot_bytes;
  spec.deadline = deadline_;
  spec.began = setting.began;
  spec.forwards = true;
  spec.near = mask_of(calls.group().ranks) & ~bit(setting.rank);
  spec.stages.resize(plan_.whole() ? 1 : 2);
  for (StageSpec& stage : spec.stages) stage.closed_by_caller = true;
  calls_.add(*this);
  try {
    open(std::move(spec), signature(), now);
  } catch (...) {
    calls_.remove(*this);
    throw;
  }
  tag_.begin(number_, encode(signature()),
             plan_.whole() ? std::span<const Part>(kWhole) : std::span<const Part>(kInSlices));
}

HostedCall::~HostedCall() {
  calls_.remove(*this);
}

OperationSignature HostedCall::signature() const {
  OperationSignature result = common_signature(call_->arguments);
  result.algorithm = call_->arguments.algorithm;
  result.slot_bytes = static_cast<std::uint16_t>(setting_.slot_bytes);
  return result;
}

bool HostedCall::advance(Time now) {
  moved_ = false;
  look(now);
  if (over()) return true;
  if (may_copy_in()) copy_in();
  if (may_add_up()) add_up();
  if (may_copy_out()) copy_out();
  if (moved_) calls_.ring();
  if (!moved_) endpoint_.near(handle()).awaits(awaited());
  wake_at_ = moved_ ? now : kNever;
  if (next(Part::copy_out) == plan_.steps()) finish(now);
  return over();
}

void HostedCall::finish(Time now) {
  close_stages(now);
  report_end(now);
  close(nullptr, 0);
}

/// Completes the report. Tells the other ranks of the host about a call that ends without a result.
void HostedCall::complete_output() {
  report_bytes();
  const Report& report = call_->report;
  if (report.status == Status::complete) return;
  tag_.end(number_, ending());
  calls_.ring(true);
}

// -- the other ranks -----------------------------------------------------------------------------

bool HostedCall::has_news(std::uint32_t rank) const {
  const hosts::HostTag::Told told = tag_.told(rank, number_);
  if (told.state == CallState::given_up) return (quit_ >> rank & 1) == 0;
  return told.state == CallState::begun && !is_heard(rank) && (odd_ >> rank & 1) == 0;
}

void HostedCall::look(Time now) {
  for (std::uint32_t rank = 0; rank < local_ && !over(); ++rank) {
    if (rank == self_) continue;
    const hosts::HostTag::Told told = tag_.told(rank, number_);
    if (told.state != CallState::none) take_news(rank, told, now);
  }
}

void HostedCall::take_news(std::uint32_t rank, const hosts::HostTag::Told& told, Time now) {
  const Rank peer = calls_.group().ranks[rank];
  if (told.state == CallState::given_up) {
    if ((std::exchange(quit_, quit_ | bit(static_cast<Rank>(rank))) >> rank & 1) != 0) return;
    Event event;
    event.kind = Event::Kind::aborted;
    event.operation = handle();
    event.peer = peer;
    // Another process may have written anything.
    event.reason = told.reason < TARPON_ABORT_END ? told.reason : 0;
    event.ranks = told.blamed & first_ranks(setting_.world);
    if (event.ranks == 0) event.ranks = bit(peer);
    return on_event(event, now);
  }
  if (told.state != CallState::begun || is_heard(rank) || (odd_ >> rank & 1) != 0) return;
  begun_at_[rank] = now;
  endpoint_.near(handle()).begun(peer, told.signature, now);
  const bool alike = told.signature == encode(signature());
  (alike ? heard_ : odd_) |= bit(static_cast<Rank>(rank));
  if (!alike) moved_ = true;  // the endpoint has an event for this call
}

/// Whether all ranks of the host have begun the call, and none has given it up: what their
/// positions say is in the memory then. Look at the positions first.
bool HostedCall::all_hold() const {
  if (heard_ != first_ranks(static_cast<std::uint16_t>(local_))) return false;
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank != self_ && tag_.told(rank, number_).state != CallState::begun) return false;
  }
  return true;
}

// -- the work ------------------------------------------------------------------------------------

const std::byte* HostedCall::input_at(std::uint64_t element) const {
  return static_cast<const std::byte*>(call_->arguments.input) +
         element * element_bytes(call_->arguments.type);
}

/// Where the contributions of all ranks to an element lie: `offset` bytes into their places, this
/// rank's own in its input.
std::span<const std::byte* const> HostedCall::contributions(std::uint32_t place,
                                                            std::uint64_t offset,
                                                            std::uint64_t element) {
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    from_[rank] = rank == self_ ? input_at(element) : tag_.input(place, rank) + offset;
  }
  return from_;
}

void HostedCall::done_with_step(Part part) {
  const std::uint32_t steps = ++next_[static_cast<std::size_t>(part)];
  if (steps == plan_.steps()) {
    tag_.leave(part, number_);
  } else {
    tag_.publish(part, number_, steps);
  }
  moved_ = true;
}

bool HostedCall::may_copy_in() const {
  const std::uint32_t step = next(Part::copy_in);
  return step < plan_.steps() && tag_.is_turn(Part::copy_in, number_) &&
         tag_.is_free(tag_.place(number_, step));
}

void HostedCall::copy_in() {
  const std::uint32_t step = next(Part::copy_in);
  const std::uint32_t place = tag_.place(number_, step);
  const Range range = plan_.range(step);
  const std::size_t element = element_bytes(call_->arguments.type);
  tag_.use(place, number_, step);
  const auto copy = [&](std::uint64_t first, std::uint64_t count) {
    if (count == 0) return;
    std::memcpy(tag_.input(place, self_) + first * element, input_at(range.first + first),
                count * element);
  };
  // The slice that this rank owns is needed by no other rank.
  const Range own = plan_.whole() ? Range{} : plan_.slice(step, self_);
  copy(0, own.first);
  copy(own.first + own.count, range.count - own.first - own.count);
  done_with_step(Part::copy_in);
}

bool HostedCall::may_add_up() const {
  const std::uint32_t step = next(Part::add_up);
  if (plan_.whole() || step >= next(Part::copy_in)) return false;
  return tag_.is_turn(Part::add_up, number_) &&
         tag_.all_have_reached(Part::copy_in, position(number_, step + 1)) && all_hold();
}

void HostedCall::add_up() {
  const std::uint32_t step = next(Part::add_up);
  const std::uint32_t place = tag_.place(number_, step);
  const Range range = plan_.range(step);
  const Range own = plan_.slice(step, self_);
  const std::uint64_t offset = own.first * element_bytes(call_->arguments.type);
  sums_.add_up(tag_.result(place) + offset, contributions(place, offset, range.first + own.first),
               own.count);
  done_with_step(Part::add_up);
}

bool HostedCall::may_copy_out() const {
  const std::uint32_t step = next(Part::copy_out);
  if (step >= next(plan_.whole() ? Part::copy_in : Part::add_up)) return false;
  const Part before = plan_.whole() ? Part::copy_in : Part::add_up;
  return tag_.is_turn(Part::copy_out, number_) &&
         tag_.all_have_reached(before, position(number_, step + 1)) && all_hold();
}

void HostedCall::copy_out() {
  const std::uint32_t step = next(Part::copy_out);
  const std::uint32_t place = tag_.place(number_, step);
  const Range range = plan_.range(step);
  const std::size_t element = element_bytes(call_->arguments.type);
  std::byte* const output =
      static_cast<std::byte*>(call_->arguments.output) + range.first * element;
  if (range.count > 0 && plan_.whole()) {
    sums_.add_up(output, contributions(place, 0, range.first), range.count);
  } else if (range.count > 0) {
    std::memcpy(output, tag_.result(place), range.count * element);
  }
  done_with_step(Part::copy_out);
}

/// What the other ranks of the host are told about the end without a result: what the network
/// tells.
hosts::HostTag::Ending HostedCall::ending() const {
  const Report& report = call_->report;
  AbortReason reason = report.abort_reason;
  std::uint64_t blamed = mask_of(report.blamed);
  switch (report.status) {
    case Status::mismatch:
      reason = AbortReason::mismatch;
      blamed = bit(setting_.rank);
      break;
    case Status::peer_late:
      reason = AbortReason::late;
      blamed = mask_of(report.late_ranks);
      break;
    case Status::aborted:
      break;
    default:
      return {.state = CallState::over};
  }
  return {.state = CallState::given_up,
          .reason = static_cast<std::uint32_t>(reason),
          .blamed = blamed != 0 ? blamed : bit(setting_.rank)};
}

/// The bytes that this rank has taken from each rank, first contributions, then results, and when
/// it saw the rank begin, if no packet came later.
void HostedCall::report_bytes() {
  const std::size_t element = element_bytes(call_->arguments.type);
  Report& report = call_->report;
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank == self_) continue;
    PeerReport& peer = report.peers[calls_.group().ranks[rank]];
    for (std::uint32_t step = 0; step < plan_.steps(); ++step) {
      const Range range = plan_.range(step);
      const std::uint64_t given =
          (plan_.whole() ? range.count : plan_.slice(step, self_).count) * element;
      const std::uint64_t result = plan_.whole() ? 0 : plan_.slice(step, rank).count * element;
      const bool added = step < next(plan_.whole() ? Part::copy_out : Part::add_up);
      const bool taken = step < next(Part::copy_out);
      peer.bytes_expected[0] += given;
      peer.bytes_expected[1] += result;
      peer.bytes_received[0] += added ? given : 0;
      peer.bytes_received[1] += taken ? result : 0;
    }
    if (begun_at_[rank] != kNever) {
      const Duration ago = std::max(Duration(), submitted_ + report.elapsed - begun_at_[rank]);
      peer.last_heard = std::min(ago, peer.last_heard.value_or(ago));
    }
    report.bytes_received += peer.bytes_received[0] + peer.bytes_received[1];
  }
  report.bytes_sent = report.bytes_received;
}

/// The ranks for which this rank waits. Bit r: rank r of the communicator.
std::uint64_t HostedCall::awaited() const {
  std::uint64_t lacking = first_ranks(static_cast<std::uint16_t>(local_)) & ~heard_;
  if (lacking == 0) {
    const std::uint32_t step = next(Part::copy_out);
    const bool added_up = !plan_.whole() && next(Part::add_up) > step;
    lacking = tag_.lacking(added_up ? Part::add_up : Part::copy_in, position(number_, step + 1));
  }
  std::uint64_t result = 0;
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank != self_ && (lacking >> rank & 1) != 0) result |= bit(calls_.group().ranks[rank]);
  }
  return result;
}

/// Data that is in the memory now takes at most two turns for each place. Other ranks may
/// add more meanwhile: that waits for the next call of this function.
void HostedCall::move(Time now) {
  const std::uint32_t turns = 2 * calls_.group().memory.shape().places;
  for (std::uint32_t turn = 0; turn < turns && can_move(); ++turn) advance(now);
}

bool HostedCall::can_move() const {
  if (over() || is_mismatched()) return false;
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank != self_ && has_news(rank)) return true;
  }
  return may_copy_in() || may_add_up() || may_copy_out();
}

/// A call of one step that has been copied in waits for one thing.
std::optional<hosts::Wish> HostedCall::wish() const {
  if (over() || plan_.steps() != 1 || next(Part::copy_in) == 0) return std::nullopt;
  const bool added_up = !plan_.whole() && next(Part::add_up) == 1;
  const Part part = added_up ? Part::add_up : Part::copy_in;
  const Part own = plan_.whole() || added_up ? Part::copy_out : Part::add_up;
  if (!tag_.is_turn(own, number_)) return std::nullopt;
  return hosts::Wish{tag_.index(), part, position(number_, 1)};
}

}  // namespace tarpon
