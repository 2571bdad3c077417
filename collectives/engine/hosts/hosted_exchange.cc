#include "collectives/engine/hosts/hosted_exchange.h"

#include <utility>

#include "transport/rank_mask.h"

namespace tarpon {

HostedExchange::HostedExchange(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                               Endpoint& endpoint, hosts::HostCalls& calls, Time submitted,
                               Time now)
    : HostedCall(setting, call, endpoint, calls, submitted, now, program_of(setting, *call)),
      exchange_(call_->arguments, calls.group(), peers(), assignment()) {
  OperationSpec spec = specify();
  spec.near = first_ranks(setting.world) & ~bit(setting.rank);
  spec.stages[0].closed_by_caller = true;
  begin(std::move(spec), now);
}

bool HostedExchange::suits(const CollectiveParts* parts, const hosts::HostLayout& layout) {
  if (layout.count() != 1) return false;
  return parts == nullptr || (!is_message(parts->collective) && !parts->by_pair);
}

/// No packets.
ScheduledCall::Program HostedExchange::program_of(const Setting& setting, const PendingCall& call) {
  Program program;
  program.schedule.stages.resize(1);
  program.input = call.arguments.bucket_input(setting.rank);
  program.contributors = bit(setting.rank);
  program.function = call.arguments.function;
  return program;
}

}  // namespace tarpon
