#include "collectives/engine/hosts/hosted_allreduce.h"

#include <utility>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

using hosts::HostGroup;
using hosts::Part;
using hosts::position;

}  // namespace

HostedAllreduce::HostedAllreduce(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                                 Endpoint& endpoint, hosts::HostCalls& calls, Time submitted,
                                 Time now)
    : HostedCall(setting, call, endpoint, calls, submitted, now,
                 program_of(setting, *call, calls.group())),
      self_(calls.group().self),
      steps_(call_->arguments, calls.group(), peers(), assignment(), setting.world),
      hosts_heard_(std::uint64_t{1} << calls.group().host) {
  begin(steps_, now);
}

/// TAR of this rank's slice among its owners at all hosts. A rank that owns none, and a job of one
/// host, have no messages.
ScheduledCall::Program HostedAllreduce::program_of(const Setting& setting, const PendingCall& call,
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

/// Notes which results of this rank's slice have come, and which hosts have begun.
void HostedAllreduce::take_packets(Time now) {
  for (std::uint32_t shard = 0; shard < plan().hosts() && exchanges(); ++shard) {
    steps_.set_results(shard, executor().results(shard));
  }
  if (near() != 0 && plan().hosts() > 1) look_at_hosts(now);
}

/// Sends on what this rank has added up over its host.
void HostedAllreduce::give_packets() {
  for (std::uint32_t shard = 0; shard < plan().hosts() && exchanges(); ++shard) {
    executor().provide(shard, steps_.sums(shard));
  }
}

/// Notes which other hosts have begun: data from an owner proves it for all ranks of its host, and
/// a result for all hosts.
void HostedAllreduce::look_at_hosts(Time now) {
  const hosts::HostLayout& layout = calls().group().layout;
  const OperationView view = endpoint_.view(handle());
  bool results =
      assignment().line->all_have_reached(Part::spread, position(assignment().number, 1)) &&
      peers().all_hold();
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
      if ((near() & bit(rank)) != 0) endpoint_.near(handle()).begun(rank, encode(signature()), now);
    }
  }
}

}  // namespace tarpon
