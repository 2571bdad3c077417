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
// The call is an operation of the endpoint: that gives it its number, its deadline and its end when
// a rank aborts, leaves or dies. Only owners of one slice exchange packets while all goes well:
// what they send proves that all ranks of their hosts have begun the same call.
#pragma once

#include <memory>
#include <optional>

#include "collectives/engine/exact/scheduled_call.h"
#include "collectives/engine/hosts/host_calls.h"
#include "collectives/engine/hosts/host_peers.h"
#include "collectives/engine/hosts/host_steps.h"

namespace tarpon {

class HostedCall : public ScheduledCall, private hosts::HostWork {
 public:
  /// As TarCall. `calls` outlives the call. REQUIRES: may_run_bounded() is false.
  HostedCall(const Setting& setting, const std::shared_ptr<PendingCall>& call, Endpoint& endpoint,
             hosts::HostCalls& calls, Time submitted, Time now);

 private:
  static Program program_of(const Setting& setting, const PendingCall& call,
                            const hosts::HostGroup& group);

  bool advance(Time now) override;
  void complete_output() override;

  hosts::CallName name() const override { return {call_->arguments.tag, call_->report.operation}; }
  std::uint64_t lacks() const override;
  bool has_line() const override { return assignment_.line != nullptr; }
  void move(Time now) override;
  bool can_move() const override;
  std::optional<hosts::Wish> wish() const override;

  void take_line();
  bool look(Time now);
  void look_at_hosts(Time now);
  void provide_sums();
  void take_results();

  std::uint64_t awaited() const;
  const HostPlan& plan() const { return steps_.plan(); }

  hosts::HostCalls& calls_;
  const hosts::HostCalls::OpenCall open_call_{calls_, *this};
  hosts::Assignment assignment_;
  const std::uint32_t self_;   // local rank
  const std::uint32_t local_;  // ranks of the host
  hosts::HostPeers peers_;
  HostSteps steps_;
  std::uint64_t near_ = 0;         // OperationSpec::near
  std::uint64_t hosts_heard_ = 0;  // bit h: all ranks of host h have begun
};

}  // namespace tarpon
