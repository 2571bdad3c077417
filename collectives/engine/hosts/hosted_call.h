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
#include <span>
#include <vector>

#include "collectives/engine/exact/scheduled_call.h"
#include "collectives/engine/hosts/contributions.h"
#include "collectives/engine/hosts/host_calls.h"
#include "collectives/engine/hosts/host_plan.h"

namespace tarpon {

class HostedCall : public ScheduledCall, private hosts::HostWork {
 public:
  /// As TarCall. `calls` outlives the call. REQUIRES: may_run_bounded() is false.
  HostedCall(const Setting& setting, std::shared_ptr<PendingCall> call, Endpoint& endpoint,
             hosts::HostCalls& calls, Time submitted, Time now);
  ~HostedCall() override;

 private:
  static Program program_of(const Setting& setting, const PendingCall& call,
                            const hosts::HostGroup& group);

  bool advance(Time now) override;
  void complete_output() override;

  hosts::CallName name() const override { return {call_->arguments.tag, call_->report.operation}; }
  std::uint64_t lacks() const override;
  void move(Time now) override;
  bool can_move() const override;
  std::optional<hosts::Wish> wish() const override;

  void take_seat();
  void look(Time now);
  void take_news(std::uint32_t rank, const hosts::HostLine::Told& told, Time now);
  bool is_heard(std::uint32_t rank) const { return (heard_ >> rank & 1) != 0; }
  bool has_news(std::uint32_t rank) const;
  void look_at_hosts(Time now);
  bool all_hold() const;

  bool may_follow(hosts::Part part, hosts::Part before) const;
  bool is_result_free(std::uint32_t step) const;
  void take_results();
  bool has_results(std::uint32_t step) const;
  bool may_copy_in() const;
  bool may_add_up() const;
  bool may_spread() const;
  bool may_copy_out() const;
  void copy_in();
  void add_up();
  void spread();
  void copy_out();

  hosts::HostLine::Ending ending() const;
  void report_bytes();
  std::uint64_t awaited() const;
  std::uint64_t ranks_of_host(std::uint64_t local) const;

  const std::byte* input_at(std::uint64_t element) const;
  std::byte* output_at(std::uint64_t element) const;
  template <typename F>
  void for_pieces(std::uint32_t step, std::uint32_t owner, F f) const;
  std::span<const std::byte* const> contributions(std::uint32_t place, std::uint64_t offset,
                                                  std::uint64_t element);
  std::uint32_t next(hosts::Part part) const { return next_[static_cast<std::size_t>(part)]; }
  bool is_copied_out() const { return next(hosts::Part::copy_out) == plan_.steps(); }
  void done_with_step(hosts::Part part);

  hosts::HostCalls& calls_;
  hosts::HostLine* line_ = nullptr;  // once it has a seat
  std::uint32_t number_ = 0;         // there
  const std::uint32_t self_;         // local rank
  const std::uint32_t local_;        // ranks of the host
  const HostPlan plan_;
  const std::span<const hosts::Part> parts_;  // of its work, in order
  Contributions sums_;
  std::vector<const std::byte*> from_;               // by local rank: contributions()
  std::array<std::uint32_t, hosts::kParts> next_{};  // by Part: the step to do next
  std::uint64_t near_ = 0;                           // OperationSpec::near
  std::uint64_t heard_ = 0;  // local ranks that have begun, with the same signature
  std::uint64_t odd_ = 0;    // local ranks that have begun another operation
  std::uint64_t quit_ = 0;   // local ranks that have given the call up, as this call has been told
  std::uint64_t hosts_heard_ = 0;       // bit h: all ranks of host h have begun
  std::vector<std::uint64_t> results_;  // by shard of the own slice: elements from its begin on
  std::vector<Time> begun_at_;          // by local rank: when this call saw that it had begun
  bool moved_ = false;
};

}  // namespace tarpon
