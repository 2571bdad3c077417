#include "collectives/engine/hosts/hosted_exchange.h"

#include <algorithm>
#include <utility>

#include "collectives/engine/schedules/host_plan.h"
#include "transport/rank_mask.h"

namespace tarpon {

HostedExchange::RailBucket::RailBucket(const ExchangePlan& plan, std::uint32_t self,
                                       std::size_t element_bytes, FloatBufferPool& pool)
    : pool_(pool) {
  if (!plan.has_rail_bucket(self)) return;
  const std::uint64_t bytes = plan.rail_elements(self) * element_bytes;
  buffer_ = pool.allocate((bytes + sizeof(float) - 1) / sizeof(float) + 1);
}

HostedExchange::RailBucket::~RailBucket() {
  if (buffer_) pool_.release(std::move(*buffer_));
}

std::byte* HostedExchange::RailBucket::data() const {
  return buffer_ ? reinterpret_cast<std::byte*>(buffer_->get()) : nullptr;
}

HostedExchange::HostedExchange(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                               Endpoint& endpoint, hosts::HostCalls& calls, Time submitted,
                               Time now)
    : HostedExchange(setting, call, endpoint, calls, submitted, now, plan_of(*call, calls.group()),
                     RailBucket(plan_of(*call, calls.group()), calls.group().self,
                                element_bytes(call->arguments.type), *setting.partial_buffers)) {}

HostedExchange::HostedExchange(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                               Endpoint& endpoint, hosts::HostCalls& calls, Time submitted,
                               Time now, const ExchangePlan& plan, RailBucket rail)
    : HostedCall(setting, call, endpoint, calls, submitted, now,
                 program_of(setting, call->arguments, calls.group(), plan, rail)),
      rail_(std::move(rail)),
      chunks_(plan.schedule(calls.group().self).chunks),
      exchange_(call_->arguments, calls.group(), peers(), assignment(), plan, setting.world,
                rail_.data(), [this](Range elements) { return has_come(elements); }) {
  begin(exchange_, now);
}

ExchangePlan HostedExchange::plan_of(const PendingCall& call, const hosts::HostGroup& group) {
  return {*call.arguments.parts, group.layout, group.host, element_bytes(call.arguments.type),
          group.memory.shape().place_bytes};
}

/// The messages to other hosts.
ScheduledCall::Program HostedExchange::program_of(const Setting& setting,
                                                  const CallArguments& arguments,
                                                  const hosts::HostGroup& group,
                                                  const ExchangePlan& plan,
                                                  const RailBucket& rail) {
  const std::uint64_t host = mask_of(group.ranks());
  Program program;
  program.schedule = plan.schedule(group.self);
  program.input = arguments.bucket_input(setting.rank);
  program.contributors = bit(setting.rank);
  // An empty bucket proves nothing about the ranks of other hosts.
  if (arguments.count == 0) program.others = first_ranks(setting.world) & ~host;
  if (rail.data() == nullptr) return program;
  program.input = rail.data();
  program.contributors = host;
  program.provided = true;
  program.function = HostPlan::function_over_hosts(arguments);
  // By arithmetic of integers: element 0 of the bucket may lie outside of the output.
  const std::uint64_t before =
      plan.rail_offset(group.self, plan.own_slice()) * element_bytes(arguments.type);
  program.output =
      reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(arguments.output) - before);
  return program;
}

/// Sends on what this rank has added up over its host.
void HostedExchange::give_packets() {
  if (rail_.data() == nullptr) return;
  for (std::uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    executor().provide(chunk, exchange_.sums(chunk));
  }
}

/// Whether packets have brought these elements of the output.
bool HostedExchange::has_come(Range elements) {
  for (std::uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const Range all = chunks_[chunk].elements;
    const std::uint64_t end = std::min(all.end(), elements.end());
    if (elements.count == 0 || end <= std::max(all.first, elements.first)) continue;
    if (executor().results(chunk) < end - all.first) return false;
  }
  return true;
}

}  // namespace tarpon
