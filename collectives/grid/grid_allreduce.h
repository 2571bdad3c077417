// An AllReduce of a grid: reduce_scatter in the host, AllReduce of a slice on the rail, all_gather
// in the host; in chunks.
#pragma once

#include <cstdint>

#include "collectives/engine/schedules/shards.h"
#include "collectives/grid/grid_call.h"

namespace tarpon::grid {

class GridAllreduce final : public GridCall {
 public:
  /// Of a chunk, what one rank sends on its rail. So a chunk has this many bytes for each rank of a
  /// host. On a link of 10 to 100 Gb/s a call on the rail then takes 0.1 to 1 ms, several times
  /// its fixed cost. A bucket of 100 MiB on 8 ranks a host has 13 chunks: all but the first and the
  /// last overlap with work in the host.
  static constexpr std::uint64_t kChunkBytes = 1 << 20;

  /// As GridCall. Throws std::bad_alloc.
  GridAllreduce(const GridParts& parts, const AllreduceArguments& arguments,
                std::shared_ptr<GridCall> before, Time submitted);

 private:
  CallArguments make(Stage stage, std::uint64_t chunk) override;
  std::uint64_t note_end(Stage stage, std::uint64_t chunk) override;
  CallArguments scatter_call(std::uint64_t chunk) const;
  CallArguments rail_call(std::uint64_t chunk) const;
  CallArguments gather_call(std::uint64_t chunk) const;
  Range chunk_elements(std::uint64_t chunk) const;
  Range slice(std::uint64_t chunk) const;
  std::byte* output(std::uint64_t element) const;

  const AllreduceArguments arguments_;
  const std::uint64_t chunk_size_;  // elements
  const bool divides_last_;
};

}  // namespace tarpon::grid
