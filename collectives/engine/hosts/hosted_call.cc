#include "collectives/engine/hosts/hosted_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tarpon {
namespace {

using hosts::CallState;
using hosts::HostCalls;
using hosts::HostGroup;
using hosts::HostLine;
using hosts::Part;
using hosts::position;

constexpr std::array<Part, 2> kWhole{Part::copy_in, Part::copy_out};
constexpr std::array<Part, 3> kOneHost{Part::copy_in, Part::add_up, Part::copy_out};
constexpr std::array<Part, 4> kOverHosts{Part::copy_in, Part::add_up, Part::spread, Part::copy_out};

std::span<const Part> parts_of(const HostPlan& plan) {
  if (plan.whole()) return kWhole;
  return plan.hosts() == 1 ? std::span<const Part>(kOneHost) : kOverHosts;
}

/// Whether a host divides its sums for an average. Half precision would overflow if all hosts did
/// that together at the end.
bool divides_in_host(const AllreduceArguments& call) {
  return call.function == ReduceOp::avg && is_half(call.type);
}

Contributions::Shape sums_of(const AllreduceArguments& call, std::uint32_t hosts,
                             std::uint32_t world) {
  const bool sum = hosts > 1 && call.function == ReduceOp::avg && !divides_in_host(call);
  return {.type = call.type,
          .function = sum ? ReduceOp::sum : call.function,
          .custom = call.custom,
          .ranks = world};
}

}  // namespace

HostedCall::HostedCall(const Setting& setting, std::shared_ptr<PendingCall> call,
                       Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now)
    : ScheduledCall(setting, call, endpoint, submitted, now,
                    program_of(setting, *call, calls.group())),
      calls_(calls),
      self_(calls.group().self),
      local_(static_cast<std::uint32_t>(calls.group().ranks().size())),
      plan_(call_->arguments, calls.group().layout, calls.group().memory.shape()),
      parts_(parts_of(plan_)),
      sums_(sums_of(call_->arguments, plan_.hosts(), setting.world)),
      from_(local_),
      heard_(bit(static_cast<Rank>(self_))),
      hosts_heard_(std::uint64_t{1} << calls.group().host),
      results_(plan_.hosts()),
      begun_at_(local_, kNever) {
  OperationSpec spec = specify();
  spec.near = first_ranks(setting.world) & ~bit(setting.rank);
  for (StageSpec& stage : spec.stages) {
    stage.closed_by_caller = true;
    stage.alike = false;  // by multicast a result would go to ranks that do not own this slice
    for (const SendSpec& send : stage.sends) spec.near &= ~bit(send.peer);
    for (const ReceiveSpec& receive : stage.receives) spec.near &= ~bit(receive.peer);
  }
  near_ = spec.near;
  calls_.add(*this);
  try {
    open(std::move(spec), signature(), now);
  } catch (...) {
    calls_.remove(*this);
    throw;
  }
  take_seat();
}

/// TAR of this rank's slice among its owners at all hosts. A rank that owns none, and a job of one
/// host, have no messages.
ScheduledCall::Program HostedCall::program_of(const Setting& setting, const PendingCall& call,
                                              const HostGroup& group) {
  const AllreduceArguments& arguments = call.arguments;
  const hosts::HostLayout& layout = group.layout;
  const HostPlan plan(arguments, layout, group.memory.shape());
  Program program;
  program.schedule.stages.resize(plan.whole() ? 1 : 2);
  program.function = divides_in_host(arguments) ? ReduceOp::sum : arguments.function;
  if (plan.hosts() == 1) return program;
  program.input = static_cast<const std::byte*>(arguments.output);
  program.contributors = mask_of(group.ranks());
  program.provided = true;
  // An empty bucket proves nothing about the ranks of other hosts.
  if (arguments.count == 0) program.others = first_ranks(setting.world) & ~program.contributors;
  if (group.self >= plan.owners()) return program;
  const Range slice = plan.slice(group.self);
  program.schedule = transpose_schedule(plan.hosts(), static_cast<Rank>(group.host),
                                        setting.mechanisms.rotation ? call.report.operation : 0,
                                        slice.count, element_bytes(arguments.type));
  for (Schedule::Chunk& chunk : program.schedule.chunks) chunk.elements.first += slice.first;
  for (Schedule::Stage& stage : program.schedule.stages) {
    for (auto* const messages : {&stage.sends, &stage.receives}) {
      for (Schedule::Message& message : *messages) {
        message.peer = layout.hosts[message.peer][group.self];
      }
    }
  }
  return program;
}

HostedCall::~HostedCall() {
  calls_.remove(*this);
}

/// Takes the seat on a line, if there is one, and begins there. Until then this rank knows of the
/// other ranks of its host only which ones hold the seat up.
void HostedCall::take_seat() {
  const std::optional<HostCalls::Seat> seat = calls_.take_seat(name());
  const std::uint64_t local = mask_of(calls_.group().ranks()) & ~bit(setting_.rank);
  if (!seat) {
    const std::uint64_t awaited = ranks_of_host(calls_.seat_lacks());
    endpoint_.near(handle()).awaits(awaited);
    unknown_ = local & ~awaited;
    return;
  }
  line_ = seat->line;
  number_ = seat->number;
  unknown_ = 0;
  line_->begin(number_, encode(signature()), parts_);
  calls_.ring();
}

bool HostedCall::advance(Time now) {
  if (line_ == nullptr) {
    take_seat();
    if (line_ == nullptr) return false;
  }
  if (is_copied_out()) return ScheduledCall::advance(now);
  moved_ = false;
  take_results();
  look(now);
  if (over()) return true;
  if (near_ != 0 && plan_.hosts() > 1) look_at_hosts(now);
  if (may_copy_in()) copy_in();
  if (may_add_up()) add_up();
  if (may_spread()) spread();
  if (may_copy_out()) copy_out();
  executor().advance(endpoint_, handle());
  if (moved_) calls_.ring();
  if (!moved_) endpoint_.near(handle()).awaits(awaited());
  wake_at_ = moved_ ? now : kNever;
  if (!is_copied_out()) return false;
  close_stages(now);
  wake_at_ = kNever;
  return ScheduledCall::advance(now);
}

/// Completes the report. Tells the other ranks of the host about a call that ends without a result.
void HostedCall::complete_output() {
  report_bytes();
  const Report& report = call_->report;
  if (report.status == Status::complete) return;
  if (line_ == nullptr) return calls_.pass_over(name(), ending());
  line_->end(number_, ending());
  calls_.ring(true);
}

// -- the other ranks -----------------------------------------------------------------------------

bool HostedCall::has_news(std::uint32_t rank) const {
  const hosts::HostLine::Told told = line_->told(rank, number_);
  if (told.state == CallState::given_up) return (quit_ >> rank & 1) == 0;
  return told.state == CallState::begun && !is_heard(rank) && (odd_ >> rank & 1) == 0;
}

void HostedCall::look(Time now) {
  for (std::uint32_t rank = 0; rank < local_ && !over(); ++rank) {
    if (rank == self_) continue;
    const hosts::HostLine::Told told = line_->told(rank, number_);
    if (told.state != CallState::none) take_news(rank, told, now);
  }
}

void HostedCall::take_news(std::uint32_t rank, const hosts::HostLine::Told& told, Time now) {
  const Rank peer = calls_.group().ranks()[rank];
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

/// Notes which other hosts have begun: data from an owner proves it for all ranks of its host, and
/// a result for all hosts.
void HostedCall::look_at_hosts(Time now) {
  const hosts::HostLayout& layout = calls_.group().layout;
  const OperationView view = endpoint_.view(handle());
  bool results = line_->all_have_reached(Part::spread, position(number_, 1)) && all_hold();
  std::uint64_t begun = 0;
  for (std::uint32_t host = 0; host < plan_.hosts() && self_ < plan_.owners(); ++host) {
    const Rank owner = layout.hosts[host][self_];
    if (owner == setting_.rank) continue;
    if (view.progress(0, owner).received > 0) begun |= std::uint64_t{1} << host;
    results |= view.progress(1, owner).received > 0;
  }
  for (std::uint32_t host = 0; host < plan_.hosts(); ++host) {
    const bool known = (hosts_heard_ >> host & 1) != 0;
    if (known || (!results && (begun >> host & 1) == 0)) continue;
    hosts_heard_ |= std::uint64_t{1} << host;
    for (const Rank rank : layout.hosts[host]) {
      if ((near_ & bit(rank)) != 0) endpoint_.near(handle()).begun(rank, encode(signature()), now);
    }
  }
}

/// Whether all ranks of the host have begun the call, and none has given it up: what their
/// positions say is in the memory then. Look at the positions first.
bool HostedCall::all_hold() const {
  if (heard_ != first_ranks(static_cast<std::uint16_t>(local_))) return false;
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank != self_ && line_->told(rank, number_).state != CallState::begun) return false;
  }
  return true;
}

// -- the work ------------------------------------------------------------------------------------

const std::byte* HostedCall::input_at(std::uint64_t element) const {
  return static_cast<const std::byte*>(call_->arguments.input) +
         element * element_bytes(call_->arguments.type);
}

std::byte* HostedCall::output_at(std::uint64_t element) const {
  return static_cast<std::byte*>(call_->arguments.output) +
         element * element_bytes(call_->arguments.type);
}

/// Where the contributions of all ranks to a piece lie: `offset` bytes into their places, this
/// rank's own in its input, from `element` on.
std::span<const std::byte* const> HostedCall::contributions(std::uint32_t place,
                                                            std::uint64_t offset,
                                                            std::uint64_t element) {
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    from_[rank] = rank == self_ ? input_at(element) : line_->input(place, rank) + offset;
  }
  return from_;
}

/// Calls f(number of the shard, elements, offset in the place) for the pieces of a step that belong
/// to `owner`.
template <typename F>
void HostedCall::for_pieces(std::uint32_t step, std::uint32_t owner, F f) const {
  for (std::uint32_t shard = 0; shard < plan_.hosts(); ++shard) {
    const Range piece = plan_.piece(step, owner, shard);
    if (piece.count > 0) f(shard, piece, plan_.offset(owner, shard));
  }
}

void HostedCall::done_with_step(Part part) {
  const std::uint32_t steps = ++next_[static_cast<std::size_t>(part)];
  if (steps == plan_.steps()) {
    line_->leave(part, number_);
  } else {
    line_->publish(part, number_, steps);
  }
  moved_ = true;
}

/// Whether the next step of `part` is its turn, and all ranks of the host have done that step of
/// `before`.
bool HostedCall::may_follow(Part part, Part before) const {
  const std::uint32_t step = next(part);
  if (step >= next(before) || !line_->is_turn(part, number_)) return false;
  return line_->all_have_reached(before, position(number_, step + 1)) && all_hold();
}

bool HostedCall::is_result_free(std::uint32_t step) const {
  return line_->is_free(HostLine::Area::result, line_->place(number_, step));
}

bool HostedCall::may_copy_in() const {
  const std::uint32_t step = next(Part::copy_in);
  return step < plan_.steps() && line_->is_turn(Part::copy_in, number_) &&
         line_->is_free(HostLine::Area::inputs, line_->place(number_, step));
}

void HostedCall::copy_in() {
  const std::uint32_t step = next(Part::copy_in);
  const std::uint32_t place = line_->place(number_, step);
  const std::size_t element = element_bytes(call_->arguments.type);
  const Part until = plan_.whole() ? Part::copy_out : Part::add_up;
  line_->use(HostLine::Area::inputs, place, until, number_, step);
  for (std::uint32_t owner = 0; owner < plan_.owners(); ++owner) {
    // The slice that this rank owns is needed by no other rank.
    if (owner == self_ && !plan_.whole()) continue;
    for_pieces(step, owner, [&](std::uint32_t, Range piece, std::uint64_t offset) {
      std::memcpy(line_->input(place, self_) + offset, input_at(piece.first),
                  piece.count * element);
    });
  }
  done_with_step(Part::copy_in);
}

bool HostedCall::may_add_up() const {
  if (plan_.whole() || !may_follow(Part::add_up, Part::copy_in)) return false;
  return plan_.hosts() > 1 || is_result_free(next(Part::add_up));
}

/// Adds up over this host: into the result of the place, or, if there are more hosts, into the
/// output, from where the sums go to them.
void HostedCall::add_up() {
  const std::uint32_t step = next(Part::add_up);
  const std::uint32_t place = line_->place(number_, step);
  const bool alone = plan_.hosts() == 1;
  if (alone) line_->use(HostLine::Area::result, place, Part::copy_out, number_, step);
  if (self_ < plan_.owners()) {
    for_pieces(step, self_, [&](std::uint32_t shard, Range piece, std::uint64_t offset) {
      std::byte* const to = alone ? line_->result(place) + offset : output_at(piece.first);
      sums_.add_up(to, contributions(place, offset, piece.first), piece.count);
      if (!alone) executor().provide(shard, plan_.reached(step, self_, shard));
    });
  }
  done_with_step(Part::add_up);
}

bool HostedCall::may_spread() const {
  const std::uint32_t step = next(Part::spread);
  if (plan_.hosts() == 1 || step >= next(Part::add_up)) return false;
  return line_->is_turn(Part::spread, number_) && is_result_free(step) && has_results(step);
}

/// Notes which results of this rank's slice have come.
void HostedCall::take_results() {
  if (plan_.hosts() == 1 || self_ >= plan_.owners()) return;
  for (std::uint32_t shard = 0; shard < plan_.hosts(); ++shard) {
    results_[shard] = executor().results(shard);
  }
}

/// Whether the results of this rank's slice are there for a step.
bool HostedCall::has_results(std::uint32_t step) const {
  bool all = true;
  for (std::uint32_t shard = 0; shard < plan_.hosts() && self_ < plan_.owners(); ++shard) {
    all &= results_[shard] >= plan_.reached(step, self_, shard);
  }
  return all;
}

void HostedCall::spread() {
  const std::uint32_t step = next(Part::spread);
  const std::uint32_t place = line_->place(number_, step);
  const std::size_t element = element_bytes(call_->arguments.type);
  line_->use(HostLine::Area::result, place, Part::copy_out, number_, step);
  if (self_ < plan_.owners() && local_ > 1) {
    for_pieces(step, self_, [&](std::uint32_t, Range piece, std::uint64_t offset) {
      std::memcpy(line_->result(place) + offset, output_at(piece.first), piece.count * element);
    });
  }
  done_with_step(Part::spread);
}

bool HostedCall::may_copy_out() const {
  return !is_copied_out() && may_follow(Part::copy_out, parts_[parts_.size() - 2]);
}

void HostedCall::copy_out() {
  const std::uint32_t step = next(Part::copy_out);
  const std::uint32_t place = line_->place(number_, step);
  const std::size_t element = element_bytes(call_->arguments.type);
  for (std::uint32_t owner = 0; owner < plan_.owners(); ++owner) {
    if (owner == self_ && plan_.hosts() > 1) continue;  // it is there
    for_pieces(step, owner, [&](std::uint32_t, Range piece, std::uint64_t offset) {
      if (plan_.whole()) {
        sums_.add_up(output_at(piece.first), contributions(place, offset, piece.first),
                     piece.count);
      } else {
        std::memcpy(output_at(piece.first), line_->result(place) + offset, piece.count * element);
      }
    });
  }
  done_with_step(Part::copy_out);
}

/// What the other ranks of the host are told about the end without a result: what the network
/// tells.
hosts::HostLine::Ending HostedCall::ending() const {
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

/// The bytes that this rank has taken from each rank of its host, first contributions, then
/// results, and when it saw the rank begin, if no packet came later.
void HostedCall::report_bytes() {
  const std::size_t element = element_bytes(call_->arguments.type);
  Report& report = call_->report;
  std::uint64_t taken = 0;
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank == self_) continue;
    PeerReport& peer = report.peers[calls_.group().ranks()[rank]];
    const std::uint32_t added = next(plan_.whole() ? Part::copy_out : Part::add_up);
    const std::uint32_t own = plan_.whole() ? 0 : self_;
    peer.bytes_expected[0] += plan_.elements(own, plan_.steps()) * element;
    peer.bytes_received[0] += plan_.elements(own, added) * element;
    if (!plan_.whole()) {
      peer.bytes_expected[1] += plan_.elements(rank, plan_.steps()) * element;
      peer.bytes_received[1] += plan_.elements(rank, next(Part::copy_out)) * element;
    }
    if (begun_at_[rank] != kNever) {
      const Duration ago = std::max(Duration(), submitted_ + report.elapsed - begun_at_[rank]);
      peer.last_heard = std::min(ago, peer.last_heard.value_or(ago));
    }
    taken += peer.bytes_received[0] + peer.bytes_received[1];
  }
  report.bytes_received += taken;
  report.bytes_sent += taken;
}

std::uint64_t HostedCall::lacks() const {
  return over() ? 0 : mask_of(blame().absent());
}

/// The ranks of the host for which this rank waits; all ranks for which an earlier call waits, if
/// that has the turn. Bit r: rank r of the communicator.
std::uint64_t HostedCall::awaited() const {
  for (const Part part : parts_) {
    if (next(part) == plan_.steps() || line_->is_turn(part, number_)) continue;
    return calls_.lacked_by({call_->arguments.tag, line_->first(part)});
  }
  std::uint64_t lacking = first_ranks(static_cast<std::uint16_t>(local_)) & ~heard_;
  const std::uint32_t step = next(Part::copy_out);
  for (std::size_t i = parts_.size() - 1; i-- > 0 && lacking == 0;) {
    if (next(parts_[i]) > step) lacking = line_->lacking(parts_[i], position(number_, step + 1));
  }
  return ranks_of_host(lacking);
}

/// Bit r of `local`: local rank r. The result without this rank, as ranks of the communicator.
std::uint64_t HostedCall::ranks_of_host(std::uint64_t local) const {
  std::uint64_t result = 0;
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank != self_ && (local >> rank & 1) != 0) result |= bit(calls_.group().ranks()[rank]);
  }
  return result;
}

/// Data that is in the memory now takes at most so many turns as there are parts, for each place.
/// Other ranks may add more meanwhile: that waits for the next call of this function.
void HostedCall::move(Time now) {
  const std::uint32_t turns = kOverHosts.size() * calls_.group().memory.shape().places;
  if (line_ != nullptr) take_results();
  for (std::uint32_t turn = 0; turn < turns && can_move(); ++turn) advance(now);
}

bool HostedCall::can_move() const {
  if (over() || is_mismatched() || is_copied_out()) return false;
  if (line_ == nullptr) return calls_.has_seat(name());
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank != self_ && has_news(rank)) return true;
  }
  return may_copy_in() || may_add_up() || may_spread() || may_copy_out();
}

/// A call of one step that has been copied in waits for one thing.
std::optional<hosts::Wish> HostedCall::wish() const {
  if (over() || line_ == nullptr || plan_.steps() != 1 || next(Part::copy_in) == 0 ||
      is_copied_out()) {
    return std::nullopt;
  }
  std::size_t i = 1;  // the part to do next
  while (next(parts_[i]) == 1) ++i;
  const bool writes_result = !plan_.whole() && parts_[i] != Part::copy_out;
  if (!line_->is_turn(parts_[i], number_) || (writes_result && !is_result_free(0))) {
    return std::nullopt;
  }
  // Packets bring what it spreads.
  const Part part = parts_[i] == Part::spread ? Part::spread : parts_[i - 1];
  return hosts::Wish{line_->index(), part, position(number_, 1)};
}

}  // namespace tarpon
