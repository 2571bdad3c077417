// One exact call that goes through the memory that the ranks of a host share: its line, the ranks
// of the host, and its end. Derived classes have the work in the memory, and the packets to other
// hosts.
//
// The call is an operation of the endpoint: that gives it its number, its deadline and its end when
// a rank aborts, leaves or dies.
#pragma once

#include <memory>
#include <optional>

#include "collectives/engine/exact/scheduled_call.h"
#include "collectives/engine/hosts/host_calls.h"
#include "collectives/engine/hosts/host_peers.h"
#include "collectives/engine/hosts/line_work.h"

namespace tarpon {

class HostedCall : public ScheduledCall, private hosts::HostWork {
 protected:
  /// As ScheduledCall. `calls` outlives the call. The derived class calls begin() as the last step
  /// of its constructor.
  HostedCall(const Setting& setting, const std::shared_ptr<PendingCall>& call, Endpoint& endpoint,
             hosts::HostCalls& calls, Time submitted, Time now, Program program);
  /// Opens the operation, and takes a line if there is one. `work`: in the memory; a member of the
  /// derived class.
  void begin(LineWork& work, Time now);

  const hosts::HostCalls& calls() const { return calls_; }
  const hosts::HostPeers& peers() const { return peers_; }
  const hosts::Assignment& assignment() const { return assignment_; }
  bool has_line() const override { return assignment_.line != nullptr; }
  /// The ranks with which this rank exchanges no packets: OperationSpec::near.
  std::uint64_t near() const { return near_; }

 private:
  // -- implemented by the derived class

  /// Before the work moves: what packets have brought.
  virtual void take_packets(Time) {}
  /// After the work has moved: what packets may take.
  virtual void give_packets() {}

  bool advance(Time now) override;
  void complete_output() override;

  hosts::CallName name() const override { return {call_->arguments.tag, call_->report.operation}; }
  std::uint64_t lacks() const override;
  void move(Time now) override;
  bool can_move() const override;
  std::optional<hosts::Wish> wish() const override;

  void take_line();
  bool look(Time now);
  std::uint64_t awaited() const;

  hosts::HostCalls& calls_;
  const hosts::HostCalls::OpenCall open_call_{calls_, *this};
  hosts::Assignment assignment_;
  hosts::HostPeers peers_;
  LineWork* work_in_memory_ = nullptr;
  std::uint64_t near_ = 0;
};

}  // namespace tarpon
