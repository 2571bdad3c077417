// How a collective beside AllReduce goes through the memory of hosts, and over the network between
// them.
//
// All hosts have as many ranks, at least 2. The ranks of one place in their hosts form a rail. They
// exchange what their hosts have for each other, so that each byte reaches a host once.
//   reduce_scatter, reduce      each rank adds up what its host contributes to the ranks of its
//                               rail; then the rail adds these sums up
//   all_gather, broadcast       the data of a rank goes along its rail; then each rank of the rail
//                               passes it on in its host
//   gather, scatter, all_to_all ranks of other hosts exchange their parts one by one
//
// In the memory the place of a rank has an area for each receiver, or one where all receivers take
// the same elements. An area has a slice for each host whose data is passed on. A step takes a
// piece of each slice. So all receivers work from the first step on.
//
// A value, from the arguments of a call and the shape of the job alone: alike on all ranks of a
// host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/engine/schedules/collective_parts.h"
#include "collectives/hosts/host_layout.h"

namespace tarpon {

class ExchangePlan {
 public:
  /// Whether ranks that lie as `layout` says can run a collective of `parts` so. Null: one whose
  /// arguments are refused.
  static bool suits(const CollectiveParts* parts, const hosts::HostLayout& layout);

  /// Of the ranks of host `host`. `place_bytes`: of the input of a rank. `parts` and `layout`
  /// outlive the plan. REQUIRES: suits().
  ExchangePlan(const CollectiveParts& parts, const hosts::HostLayout& layout, std::uint32_t host,
               std::size_t element_bytes, std::uint64_t place_bytes);

  // -- in the memory of the host. Ranks are local ones, counted from 0.

  /// An empty bucket has one step, too.
  std::uint32_t steps() const { return steps_; }
  /// Whether a receiver adds its own contribution to the elements that it takes.
  bool adds() const { return reduces(parts_.collective); }
  /// Whether all receivers of a rank take the same elements, which lie in one area.
  bool shares() const;
  /// Slices of an area.
  std::uint32_t slices() const { return slices_; }
  /// The slice of this host. Each other slice has data of another host, or for it.
  std::uint32_t own_slice() const { return slices_ == 1 ? 0 : host_; }
  /// Whether `to` takes elements of `from`. True for an empty part, too. REQUIRES: from != to.
  bool passes(std::uint32_t from, std::uint32_t to) const;
  /// Whether the elements of `slice` that `from` passes on came over the network.
  bool is_passed_on(std::uint32_t from, std::uint32_t slice) const;

  /// The elements of a slice that go from one rank to another: in the bucket that they come from,
  /// and in the one that they go to. Sums of several hosts go to the bucket of the rail. REQUIRES:
  /// passes(from, to), or, for a rank's own contribution, adds() and from == to.
  Range source(std::uint32_t from, std::uint32_t to, std::uint32_t slice) const;
  Range target(std::uint32_t from, std::uint32_t to, std::uint32_t slice) const;
  /// The part of such a range that a step takes. Empty behind the end of a short one.
  Range piece(Range all, std::uint32_t step) const;
  /// The elements of such a range up to the end of `steps` steps.
  std::uint64_t reached(const Range& all, std::uint32_t steps) const;
  /// Where a slice for a receiver lies in a place, in bytes.
  std::uint64_t offset(std::uint32_t to, std::uint32_t slice) const {
    return ((shares() ? 0 : to) * slices_ + slice) * piece_ * element_bytes_;
  }

  // -- between the hosts

  /// Whether local rank `self` adds up sums of its host that go to the bucket of the rail: one
  /// slice for each chunk of schedule(). Else the sums, if there are any, go to the output.
  bool has_rail_bucket(std::uint32_t self) const;
  /// Elements of that bucket, and where a slice begins there.
  std::uint64_t rail_elements(std::uint32_t self) const;
  std::uint64_t rail_offset(std::uint32_t self, std::uint32_t slice) const;
  /// What local rank `self` sends to ranks of other hosts, and receives of them. The peers are
  /// ranks of the communicator. With a rail bucket the elements are those of that.
  Schedule schedule(std::uint32_t self) const;

 private:
  std::uint32_t hosts() const { return static_cast<std::uint32_t>(layout_.count()); }
  std::uint32_t local() const { return static_cast<std::uint32_t>(layout_.hosts[host_].size()); }
  Rank rank(std::uint32_t local) const { return layout_.hosts[host_][local]; }
  bool has_one_part() const { return parts_.parts.empty(); }
  /// The rail of the root.
  std::uint32_t root_place() const;
  /// Whether the rail of `self` carries data.
  bool uses_rail(std::uint32_t self) const { return slices_ > 1 || self == root_place(); }
  std::uint64_t longest() const;
  Schedule along_rail(std::uint32_t self) const;
  Schedule to_other_hosts(std::uint32_t self) const;

  const CollectiveParts& parts_;
  const hosts::HostLayout& layout_;
  const std::uint32_t host_;
  const std::size_t element_bytes_;
  const std::uint32_t slices_;
  const std::uint64_t piece_;  // elements
  const std::uint32_t steps_;
};

}  // namespace tarpon
