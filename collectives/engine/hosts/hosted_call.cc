#include "collectives/engine/hosts/hosted_call.h"

#include <algorithm>
#include <utility>

#include "collectives/engine/hosts/host_reports.h"

namespace tarpon {
namespace {

using hosts::CallState;
using hosts::HostGroup;
using hosts::Part;
using hosts::position;

}  // namespace

HostedCall::HostedCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                       Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now)
    : ScheduledCall(setting, call, endpoint, submitted, now,
                    program_of(setting, *call, calls.group())),
      calls_(calls),
      self_(calls.group().self),
      local_(static_cast<std::uint32_t>(calls.group().ranks().size())),
      peers_(self_, local_, encode(signature()), assignment_),
      steps_(call_->arguments, calls.group(), peers_, assignment_, setting.world),
      hosts_heard_(std::uint64_t{1} << calls.group().host) {
  OperationSpec spec = specify();
  spec.near = first_ranks(setting.world) & ~bit(setting.rank);
  for (StageSpec& stage : spec.stages) {
    stage.closed_by_caller = true;
    stage.alike = false;  // by multicast a result would go to ranks that do not own this slice
    for (const SendSpec& send : stage.sends) spec.near &= ~bit(send.peer);
    for (const ReceiveSpec& receive : stage.receives) spec.near &= ~bit(receive.peer);
  }
  near_ = spec.near;
  open(std::move(spec), signature(), now);
  take_line();
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
  program.function = HostPlan::function_over_hosts(arguments);
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
  assignment_.line->begin(assignment_.number, encode(signature()), steps_.parts());
  calls_.ring();
}

bool HostedCall::advance(Time now) {
  if (!has_line()) {
    take_line();
    if (!has_line()) return false;
  }
  if (steps_.is_whole()) return ScheduledCall::advance(now);
  take_results();
  bool moved = look(now);
  if (over()) return true;
  if (near_ != 0 && plan().hosts() > 1) look_at_hosts(now);
  if (steps_.move()) {
    moved = true;
    calls_.ring();
    provide_sums();
  }
  executor().advance(endpoint_, handle());
  if (!moved) endpoint_.near(handle()).awaits(awaited());
  wake_at_ = moved ? now : kNever;
  if (!steps_.is_whole()) return false;
  close_stages(now);
  wake_at_ = kNever;
  return ScheduledCall::advance(now);
}

/// Sends on what this rank has added up over its host.
void HostedCall::provide_sums() {
  if (plan().hosts() == 1 || self_ >= plan().owners()) return;
  for (std::uint32_t shard = 0; shard < plan().hosts(); ++shard) {
    executor().provide(shard, steps_.sums(shard));
  }
}

/// Notes which results of this rank's slice have come.
void HostedCall::take_results() {
  if (plan().hosts() == 1 || self_ >= plan().owners()) return;
  for (std::uint32_t shard = 0; shard < plan().hosts(); ++shard) {
    steps_.set_results(shard, executor().results(shard));
  }
}

/// Completes the report. Tells the other ranks of the host about a call that ends without a result.
void HostedCall::complete_output() {
  Report& report = call_->report;
  hosts::report_near(report, calls_.group(), steps_, peers_, element_bytes(call_->arguments.type),
                     submitted_);
  if (report.status == Status::complete) return;
  const hosts::HostLine::Ending ending = hosts::ending_of(report, setting_.rank);
  if (!has_line()) return calls_.pass_over(name(), ending);
  assignment_.line->end(assignment_.number, ending);
  calls_.ring(true);
}

// -- the other ranks -----------------------------------------------------------------------------

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

/// Notes which other hosts have begun: data from an owner proves it for all ranks of its host, and
/// a result for all hosts.
void HostedCall::look_at_hosts(Time now) {
  const hosts::HostLayout& layout = calls_.group().layout;
  const OperationView view = endpoint_.view(handle());
  bool results =
      assignment_.line->all_have_reached(Part::spread, position(assignment_.number, 1)) &&
      peers_.all_hold();
  std::uint64_t begun = 0;
  for (std::uint32_t host = 0; host < plan().hosts() && self_ < plan().owners(); ++host) {
    const Rank owner = layout.hosts[host][self_];
    if (owner == setting_.rank) continue;
    if (view.progress(0, owner).received > 0) begun |= std::uint64_t{1} << host;
    results |= view.progress(1, owner).received > 0;
  }
  for (std::uint32_t host = 0; host < plan().hosts(); ++host) {
    const bool known = (hosts_heard_ >> host & 1) != 0;
    if (known || (!results && (begun >> host & 1) == 0)) continue;
    hosts_heard_ |= std::uint64_t{1} << host;
    for (const Rank rank : layout.hosts[host]) {
      if ((near_ & bit(rank)) != 0) endpoint_.near(handle()).begun(rank, encode(signature()), now);
    }
  }
}

std::uint64_t HostedCall::lacks() const {
  return over() ? 0 : mask_of(blame().absent());
}

/// The ranks of the host for which this rank waits; all ranks for which an earlier call waits, if
/// that has the turn. Bit r: rank r of the communicator.
std::uint64_t HostedCall::awaited() const {
  const std::optional<std::uint32_t> turn = steps_.turn();
  return turn ? calls_.lacked_by({call_->arguments.tag, *turn})
              : calls_.group().ranks_of(steps_.lacking()) & ~bit(setting_.rank);
}

/// Data that is in the memory now takes at most so many turns as there are parts, for each place.
/// Other ranks may add more meanwhile: that waits for the next call of this function.
void HostedCall::move(Time now) {
  const std::uint32_t turns = hosts::kParts * calls_.group().memory.shape().places;
  if (has_line()) take_results();
  for (std::uint32_t turn = 0; turn < turns && can_move(); ++turn) advance(now);
}

bool HostedCall::can_move() const {
  if (over() || is_mismatched() || steps_.is_whole()) return false;
  if (!has_line()) return calls_.can_assign(name());
  return peers_.has_news() || steps_.can_move();
}

std::optional<hosts::Wish> HostedCall::wish() const {
  return over() || !has_line() ? std::nullopt : steps_.wish();
}

}  // namespace tarpon
