#include "collectives/engine/bounded/call_layout.h"

namespace tarpon {
namespace {

TarShards shards_of(const AllreduceArguments& arguments, const Coding* coding, std::uint16_t world,
                    Rank rank, std::uint32_t turn) {
  if (coding != nullptr) {
    return striped_shards(world, rank, turn, coding->layout().rows(), coding->row_bytes(),
                          coding->row_pitch_bytes());
  }
  const std::size_t width = element_bytes(arguments.type);
  TarShards shards = tar_shards(world, rank, turn, arguments.count, width, arguments.shares);
  shards.own = shards.own.times(width);
  for (TarShards::Shard& shard : shards.others) shard.range = shard.range.times(width);
  return shards;
}

}  // namespace

CallLayout::CallLayout(const AllreduceArguments& arguments, Coding* coding, std::uint16_t world,
                       Rank rank, std::uint32_t turn, std::uint32_t slot_bytes)
    : shards_(shards_of(arguments, coding, world, rank, turn)),
      slot_bytes_(coding != nullptr ? coding->row_bytes() : slot_bytes),
      slot_stride_(coding != nullptr ? std::uint64_t{world} * coding->row_pitch_bytes()
                                     : slot_bytes),
      element_bytes_(static_cast<std::uint32_t>(tarpon::element_bytes(arguments.type))),
      positions_(coding != nullptr ? coding->layout().coded_count() : arguments.count),
      input_(coding != nullptr ? coding->data() : static_cast<const std::byte*>(arguments.input)),
      result_(coding != nullptr ? coding->data() : static_cast<std::byte*>(arguments.output)) {}

}  // namespace tarpon
