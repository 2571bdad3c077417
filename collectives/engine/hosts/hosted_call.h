// One exact AllReduce among ranks of one host, through the memory that they share.
//
// A large bucket goes in steps: each rank copies its input in, adds up the slice of the step that
// it owns, and copies the slices of all ranks out. A small one is copied in whole, and every rank
// adds all of it up itself. Both add in the order of the ranks, so all ranks have the same bits.
//
// The call is an operation of the endpoint without messages: that gives it its number, its deadline
// and its end when a rank aborts, leaves or dies. No packet leaves while all goes well.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/engine/call/running_call.h"
#include "collectives/engine/hosts/contributions.h"
#include "collectives/engine/hosts/host_calls.h"
#include "collectives/engine/hosts/host_plan.h"

namespace tarpon {

class HostedCall : public RunningCall, private hosts::HostWork {
 public:
  /// As TarCall. `calls` outlives the call. REQUIRES: may_run_bounded() is false, and host_tag() of
  /// the call's tag.
  HostedCall(const Setting& setting, std::shared_ptr<PendingCall> call, Endpoint& endpoint,
             hosts::HostCalls& calls, Time submitted, Time now);
  ~HostedCall() override;

 private:
  OperationSignature signature() const;

  void on_progress(const Event&, Time) override {}
  bool advance(Time now) override;
  void finish(Time now) override;
  void complete_output() override;

  void move(Time now) override;
  bool can_move() const override;
  std::optional<hosts::Wish> wish() const override;

  void look(Time now);
  void take_news(std::uint32_t rank, const hosts::HostTag::Told& told, Time now);
  bool is_heard(std::uint32_t rank) const { return (heard_ >> rank & 1) != 0; }
  bool has_news(std::uint32_t rank) const;
  bool all_hold() const;

  bool may_copy_in() const;
  bool may_add_up() const;
  bool may_copy_out() const;
  void copy_in();
  void add_up();
  void copy_out();

  hosts::HostTag::Ending ending() const;
  void report_bytes();
  std::uint64_t awaited() const;

  const std::byte* input_at(std::uint64_t element) const;
  std::span<const std::byte* const> contributions(std::uint32_t place, std::uint64_t offset,
                                                  std::uint64_t element);
  std::uint32_t next(hosts::Part part) const { return next_[static_cast<std::size_t>(part)]; }
  void done_with_step(hosts::Part part);

  hosts::HostCalls& calls_;
  hosts::HostTag& tag_;
  const std::uint32_t self_;   // local rank
  const std::uint32_t local_;  // ranks of the host
  const std::uint32_t number_;
  const HostPlan plan_;
  Contributions sums_;
  std::vector<const std::byte*> from_;               // by local rank: contributions()
  std::array<std::uint32_t, hosts::kParts> next_{};  // by Part: the step to do next
  std::uint64_t heard_ = 0;  // local ranks that have begun, with the same signature
  std::uint64_t odd_ = 0;    // local ranks that have begun another operation
  std::uint64_t quit_ = 0;   // local ranks that have given the call up, as this call has been told
  std::vector<Time> begun_at_;  // by local rank: when this call saw that it had begun
  bool moved_ = false;
};

}  // namespace tarpon
