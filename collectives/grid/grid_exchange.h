// A broadcast, all_gather or reduce_scatter of a grid: one call in each stage that it needs.
//
//   broadcast       rail: on that of the root.             gather: broadcast of its rank in the
//   host all_gather      rail: all_gather of the own part.      gather: all_gather of the rail's
//   parts reduce_scatter  scatter: in the host, the parts of a   rail: reduce_scatter of the sums
//                   rail go to its rank.
//
// The parts of a rail lie together in a copy, because ranks of a rail are not neighbours in the
// order of ranks. Memory: of all_gather the output once more, of reduce_scatter the input; and the
// parts of the rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/engine/schedules/shards.h"
#include "collectives/grid/grid_call.h"

namespace tarpon::grid {

class GridExchange final : public GridCall {
 public:
  /// Whether a grid has this collective.
  static bool is_there(const CollectiveArguments& arguments);

  /// Why a call with these arguments is refused; empty: it is not.
  static std::string wrong(const GridParts& parts, const CollectiveArguments& arguments);

  /// As GridCall. Throws std::bad_alloc. `refused`: the caller refuses the call next; only tag and
  /// deadline of `arguments` are read. REQUIRES: is_there(); refused, or nothing is wrong().
  GridExchange(const GridParts& parts, const CollectiveArguments& arguments, bool refused,
               std::shared_ptr<GridCall> before, Time submitted);

 private:
  static Counts calls_of(const GridParts& parts, const CollectiveArguments& arguments);
  CallArguments make(Stage stage, std::uint64_t index) override;
  std::uint64_t note_end(Stage stage, std::uint64_t index) override;
  CallArguments broadcast_call(Stage stage) const;
  CallArguments all_gather_call(Stage stage);
  CallArguments reduce_scatter_call(Stage stage);

  CollectiveArguments call_for(Collective collective) const;
  CallArguments in_host(const CollectiveArguments& call) const;
  CallArguments on_rail(const CollectiveArguments& call) const;
  std::uint64_t count_of(Rank rank) const { return part(rank).count; }
  Range part(Rank rank) const;
  std::uint64_t rail_count(std::uint32_t place) const;
  std::vector<std::uint64_t> rail_counts() const;
  std::vector<std::uint64_t> host_counts() const;
  template <typename Visit>
  void for_each_part(Visit visit) const;

  const CollectiveArguments arguments_;
  const std::size_t width_;  // bytes of an element
  const bool divides_last_;
  std::vector<Range> part_of_;      // by rank, in the whole; of a broadcast empty
  std::vector<std::byte> by_rail_;  // all parts, those of a rail together
  std::vector<std::byte> rail_;     // the parts of this rank's rail
};

}  // namespace tarpon::grid
