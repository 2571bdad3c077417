// One bounded AllReduce that adds up in each host first, through the memory that its ranks share,
// and then over the hosts by TAR, within its bound.
//
// The way of the data is that of HostedCall. Packets name the ranks that are in a sum, and so do
// the results that go through the memory.
//
// Late ranks. A rank waits for the ranks of its host as an owner waits for live ranks (HoldPolicy).
// It leaves out a rank that is silent or gone, that has ended the call, or that has not come when
// the stages end at the latest. The sums then lack that rank, and this host lacks its slice. A rank
// that is left out is late: it fetches the shards of all owners. Owners keep the shards that lack
// it. A rank that is late only for the other owners of its slice goes on in the memory, without its
// own shard.
//
// A rank that is gone costs its host a whole slice in every call. So the ranks agree that calls go
// to each rank over the network from then on (EpochSetting::flat).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine/bounded/tar_call.h"
#include "collectives/engine/hosts/host_calls.h"
#include "collectives/engine/hosts/host_peers.h"
#include "collectives/engine/hosts/host_steps.h"

namespace tarpon {

class HostedTarCall : public TarCall, private hosts::HostWork, private NearData {
 public:
  /// Whether a bounded call that is not coded runs so. Alike on all ranks.
  static bool suits(const CallArguments& arguments, const Setting& setting,
                    const hosts::HostCalls& calls);

  /// As TarCall. `calls` outlives the call. REQUIRES: suits().
  HostedTarCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now);

 private:
  /// Lends the sums over this host to another owner of the slice.
  class Sums : public Source {
   public:
    Sums(SlotArray<const std::byte> slots, const HostSteps& steps) : slots_(slots), steps_(steps) {}
    OutgoingRun lend(std::uint32_t first, std::uint32_t most) override;

   private:
    SlotArray<const std::byte> slots_;
    const HostSteps& steps_;
  };

  static OverHosts over_hosts(const Setting& setting, const PendingCall& call,
                              const hosts::HostCalls& calls, NearData& near);
  static std::uint32_t turn_of(const Setting& setting, const PendingCall& call);
  void set_contributors();

  bool advance(Time now) override;
  void complete_output() override;

  Source& source(SlotArray<const std::byte> slots) override {
    return sums_.emplace_back(slots, steps_);
  }
  bool has_contributions() const override { return reducer().provided() == reducer().slots(); }
  bool has_shards(Time now) override;
  std::uint64_t left_out() const override { return calls_.group().ranks_of(steps_.absent()); }
  const HostSums& sums() const override { return host_sums_; }

  hosts::CallName name() const override { return {call_->arguments.tag, call_->report.operation}; }
  std::uint64_t lacks() const override;
  bool has_line() const override { return true; }
  void move(Time now) override;
  bool can_move() const override;
  std::optional<hosts::Wish> wish() const override { return std::nullopt; }

  void work_near(Time now);
  void tell_marks();
  void take_marks();
  void take_steps();
  void look(Time now);
  void note_begun(Time now);
  void leave_out_absent(Time now);
  void provide_sums();
  void take_results();
  void end_sums();
  void end_near();
  void report_bytes();
  bool is_near_over() const { return near_over_ || steps_.is_whole(); }
  Time sums_until() const;
  Time shards_until() const;
  const HostPlan& plan() const { return steps_.plan(); }
  bool is_owner() const { return self_ < plan().owners(); }

  hosts::HostCalls& calls_;
  const hosts::HostCalls::OpenCall open_call_{calls_, *this};
  const hosts::Assignment assignment_;
  const std::uint32_t self_;   // local rank
  const std::uint32_t local_;  // ranks of the host
  hosts::HostPeers peers_;
  HostSteps steps_;
  const HostSums host_sums_;
  std::vector<Sums> sums_;              // by message
  std::uint32_t own_shard_ = 0;         // its number in the slice of this rank
  std::vector<std::size_t> gathered_;   // by shard of that slice: its number in gather()
  std::vector<std::uint32_t> arrived_;  // the same: slots from the begin on that are there
  std::uint32_t provided_steps_ = 0;
  bool gather_over_ = false;   // the host waits for no more packets of the results
  bool fetches_ = false;       // this rank has been left out since advance() looked
  bool near_over_ = false;     // this rank does no more work in the memory
  std::uint64_t unheard_ = 0;  // OperationSpec::near, without those that have begun
};

}  // namespace tarpon
