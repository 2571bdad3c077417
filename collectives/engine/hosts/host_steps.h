// The data work of one call in the memory of its host: copies the input in, adds up the slice that
// this rank owns, spreads the result of that slice, and copies the results out, step by step
// (host_plan.h).
//
// Sums of exact calls on one host go into the places. Others go into the output, from where the
// caller sends them to the other hosts; their results come there too.
//
// In a bounded call the host can do without a rank: leave_out(). Then the sums and results lack its
// contribution, and the results of its slice. Each slot carries its contributors.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/hosts/contributions.h"
#include "collectives/engine/hosts/host_slots.h"
#include "collectives/engine/hosts/line_work.h"
#include "collectives/engine/schedules/host_plan.h"
#include "collectives/hosts/host_group.h"

namespace tarpon {

class HostSteps : public LineWork {
 public:
  /// All outlive it. The buffers of `call` are its own until it is done. `assignment`: of the call.
  /// REQUIRES: before move() and what follows it here, the call has a line, and HostLine::begin()
  /// has run with parts(). `world`: ranks of the communicator. Throws std::bad_alloc.
  /// `slot_bytes`: of a bounded call; 0: of an exact one.
  HostSteps(const AllreduceArguments& call, const hosts::HostGroup& group,
            const hosts::HostPeers& peers, const hosts::Assignment& assignment, std::uint32_t world,
            std::uint32_t slot_bytes = 0);

  const HostPlan& plan() const { return plan_; }
  /// The results of `shard` of this rank's slice are in the output, from its first element on to
  /// `elements`. Of calls over several hosts.
  void set_results(std::uint32_t shard, std::uint64_t elements) { results_[shard] = elements; }
  /// How many elements of `shard` of this rank's slice have been added up over the host.
  std::uint64_t sums(std::uint32_t shard) const;

  // -- bounded calls -----------------------------------------------------------------------------

  /// The contributors to the slots. HostSlots::set() has to run before move().
  HostSlots& slots() { return *slots_; }
  /// The contributors to the sums of this rank's slice, by step. Bit r: rank r of the communicator.
  const std::vector<std::uint64_t>& summed() const { return summed_; }
  /// The local ranks for which this rank waits: in any part, or, with `sums`, in the parts up to
  /// the sums of its slice. Bit r: local rank r.
  std::uint64_t blockers(bool sums = false) const;
  /// The local ranks that the call does without.
  std::uint64_t absent() const;
  /// Goes on without these local ranks. They are late, and learn it.
  void leave_out(std::uint64_t ranks);
  /// Whether another rank has left this one out.
  bool is_left_out() const;
  /// Makes the sums that are not made yet of this rank's own contribution alone.
  void add_up_alone();

  // -- all calls: those of LineWork

  bool move() override;
  bool can_move() const override;
  std::optional<hosts::Wish> wish() const override;
  std::uint64_t lacking() const override;
  /// Contributions to this rank's slice, and results of the slice of `rank`.
  std::array<std::uint64_t, 2> due_from(std::uint32_t rank) const override;
  std::array<std::uint64_t, 2> taken_from(std::uint32_t rank) const override;

 private:
  HostSteps(const AllreduceArguments& call, const hosts::HostGroup& group,
            const hosts::HostPeers& peers, const hosts::Assignment& assignment, std::uint32_t world,
            const HostPlan& plan, std::uint32_t slot_bytes);
  bool may_follow(hosts::Part part, hosts::Part before) const;
  bool is_result_free(std::uint32_t step) const;
  bool has_results(std::uint32_t step) const;
  template <typename F>
  void for_sums(std::uint32_t step, F f) const;
  void drop(std::uint32_t step, std::uint32_t owner);
  bool may_copy_in() const;
  bool may_add_up() const;
  bool may_spread() const;
  bool may_copy_out() const;
  void copy_in();
  void add_up();
  void spread();
  void copy_out();
  void use(hosts::HostLine::Area area, hosts::Part until, std::uint32_t step);

  const std::byte* input_at(std::uint64_t element) const;
  std::byte* output_at(std::uint64_t element) const;
  std::span<const std::byte* const> contributions(std::uint32_t place, std::uint64_t offset,
                                                  std::uint64_t element, std::uint64_t among);
  template <typename F>
  void for_pieces(std::uint32_t step, std::uint32_t owner, F f) const;

  const AllreduceArguments& call_;
  const hosts::HostGroup& group_;
  const std::uint32_t self_;   // local rank
  const std::uint32_t local_;  // ranks of the host
  const bool bounded_;
  const HostPlan plan_;
  const bool alone_;         // an exact call on one host: sums are results
  const std::size_t width_;  // bytes of an element
  Contributions sums_;
  std::vector<const std::byte*> from_;  // by local rank: contributions()
  std::vector<std::uint64_t> results_;  // by shard: set_results()
  std::optional<HostSlots> slots_;      // of a bounded call
  std::vector<std::uint64_t> summed_;   // summed()
};

}  // namespace tarpon
