#include "collectives/engine/hosts/hosted_call.h"

#include <utility>

#include "collectives/engine/hosts/host_reports.h"

namespace tarpon {

using hosts::CallState;

HostedCall::HostedCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                       Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now,
                       Program program)
    : ScheduledCall(setting, call, endpoint, submitted, now, std::move(program)),
      calls_(calls),
      peers_(calls.group().self, static_cast<std::uint32_t>(calls.group().ranks().size()),
             encode(signature()), assignment_) {}

void HostedCall::begin(LineWork& work, Time now) {
  work_in_memory_ = &work;
  OperationSpec spec = specify();
  near_ = first_ranks(setting_.world) & ~bit(setting_.rank);
  for (StageSpec& stage : spec.stages) {
    stage.closed_by_caller = true;
    stage.alike = false;  // by multicast the data would go to ranks that do not pass it on
    for (const SendSpec& send : stage.sends) near_ &= ~bit(send.peer);
    for (const ReceiveSpec& receive : stage.receives) near_ &= ~bit(receive.peer);
  }
  spec.near = near_;
  open(std::move(spec), signature(), now);
  take_line();
}

/// Takes a line, if there is one for this call, and begins there. Until then only packets say which
/// ranks of the host have begun. At its deadline the call blames the ranks that hold the line up.
void HostedCall::take_line() {
  assignment_ = calls_.assign(name()).value_or(hosts::Assignment());
  if (!has_line()) {
    const std::uint64_t awaited = calls_.lacked_for_a_line();
    endpoint_.near(handle()).awaits(awaited);
    unknown_ = mask_of(calls_.group().ranks()) & ~bit(setting_.rank) & ~awaited;
    return;
  }
  unknown_ = 0;
  assignment_.line->begin(assignment_.number, encode(signature()), work_in_memory_->parts());
  calls_.ring();
}

bool HostedCall::advance(Time now) {
  if (!has_line()) {
    take_line();
    if (!has_line()) return false;
  }
  LineWork& work = *work_in_memory_;
  if (work.is_whole()) {
    if (blame().unheard()) look(now);
    return over() || ScheduledCall::advance(now);
  }
  bool moved = look(now);
  if (over()) return true;
  take_packets(now);
  if (work.move()) {
    moved = true;
    calls_.ring();
    give_packets();
  }
  executor().advance(endpoint_, handle());
  if (!moved) endpoint_.near(handle()).awaits(awaited());
  wake_at_ = moved ? now : kNever;
  if (!work.is_whole()) return false;
  endpoint_.near(handle()).awaits(0);
  close_stages(now);
  wake_at_ = kNever;
  return ScheduledCall::advance(now);
}

/// Completes the report. Tells the other ranks of the host about a call that ends without a result.
void HostedCall::complete_output() {
  Report& report = call_->report;
  hosts::report_near(report, calls_.group(), *work_in_memory_, peers_,
                     element_bytes(call_->arguments.type), submitted_);
  ScheduledCall::complete_output();
  if (report.status == Status::complete) return;
  const hosts::HostLine::Ending ending = hosts::ending_of(report, setting_.rank);
  if (!has_line()) return calls_.pass_over(name(), ending);
  assignment_.line->end(assignment_.number, ending);
  calls_.ring(true);
}

/// Returns whether the endpoint has an event for this call now.
bool HostedCall::look(Time now) {
  bool differs = false;
  const auto take = [&](std::uint32_t rank, const hosts::HostLine::Told& told, bool alike) {
    if (told.state == CallState::given_up) {
      on_event(hosts::abort_event(calls_.group(), rank, told, handle(), setting_.world), now);
    } else {
      endpoint_.near(handle()).begun(calls_.group().ranks()[rank], told.signature, now);
      differs |= !alike;
    }
    return !over();
  };
  peers_.look(take, now);
  return differs;
}

std::uint64_t HostedCall::lacks() const {
  return over() ? 0 : mask_of(blame().absent());
}

/// The ranks of the host for which this rank waits; all ranks for which an earlier call waits, if
/// that has the turn. Bit r: rank r of the communicator.
std::uint64_t HostedCall::awaited() const {
  const std::optional<std::uint32_t> turn = work_in_memory_->turn();
  return turn ? calls_.lacked_by({call_->arguments.tag, *turn})
              : calls_.group().ranks_of(work_in_memory_->lacking()) & ~bit(setting_.rank);
}

/// Data that is in the memory now takes at most so many turns as there are parts, for each place.
/// Other ranks may add more meanwhile: that waits for the next call of this function.
void HostedCall::move(Time now) {
  const std::uint32_t turns = hosts::kParts * calls_.group().memory.shape().places;
  if (has_line() && !over()) take_packets(now);
  for (std::uint32_t turn = 0; turn < turns && can_move(); ++turn) advance(now);
}

bool HostedCall::can_move() const {
  if (over() || is_mismatched()) return false;
  if (!has_line()) return calls_.can_assign(name());
  if (work_in_memory_->is_whole()) return blame().unheard() && peers_.has_news();
  return peers_.has_news() || work_in_memory_->can_move();
}

std::optional<hosts::Wish> HostedCall::wish() const {
  return over() || !has_line() ? std::nullopt : work_in_memory_->wish();
}

}  // namespace tarpon
