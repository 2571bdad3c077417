// One exact AllReduce that adds up in each host first, through the memory that its ranks share, and
// then over the hosts.
//
// The bucket goes in steps (host_plan.h). Each rank copies its input in. The owner of a slice adds
// up what the ranks of its host have copied in. With several hosts the owners of that slice add up
// their sums by TAR, and each copies the result back in (spread). Each rank copies the results of
// all slices out. In a host the ranks are added up in their order, then the hosts in that of TAR,
// so all ranks have the same bits. Sums of half precision are rounded once a host.
//
// On one host a small bucket is copied in whole, and every rank adds all of it up itself.
//
// Only owners of one slice exchange packets while all goes well: what they send proves that all
// ranks of their hosts have begun the same call.
#pragma once

#include <memory>

#include "collectives/engine/hosts/host_steps.h"
#include "collectives/engine/hosts/hosted_call.h"

namespace tarpon {

class HostedAllreduce : public HostedCall {
 public:
  /// As TarCall. `calls` outlives the call. REQUIRES: may_run_bounded() is false.
  HostedAllreduce(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                  Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now);

 private:
  static Program program_of(const Setting& setting, const PendingCall& call,
                            const hosts::HostGroup& group);

  void take_packets(Time now) override;
  void give_packets() override;
  void look_at_hosts(Time now);

  const HostPlan& plan() const { return steps_.plan(); }
  bool exchanges() const { return plan().hosts() > 1 && self_ < plan().owners(); }

  const std::uint32_t self_;  // local rank
  HostSteps steps_;
  std::uint64_t hosts_heard_ = 0;  // bit h: all ranks of host h have begun
};

}  // namespace tarpon
