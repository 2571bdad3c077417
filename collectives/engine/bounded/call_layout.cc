#include "collectives/engine/bounded/call_layout.h"

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

/// Of a reduce_scatter or an all_gather: the part of each rank, in elements.
TarShards shards_of(const CollectiveParts& parts, std::uint16_t world, Rank rank) {
  TarShards shards{.own = parts.parts[rank], .others = {}};
  for (std::uint16_t distance = 1; distance < world; ++distance) {
    const auto owner = static_cast<Rank>((rank + distance) % world);
    shards.others.push_back({owner, parts.parts[owner]});
  }
  return shards;
}

TarShards shards_of(const CallArguments& arguments, const Coding* coding, std::uint16_t world,
                    Rank rank, std::uint32_t turn) {
  if (coding != nullptr) {
    return striped_shards(world, rank, turn, coding->layout().rows(), coding->row_bytes(),
                          coding->row_pitch_bytes());
  }
  const std::size_t width = element_bytes(arguments.type);
  TarShards shards = arguments.parts
                         ? shards_of(*arguments.parts, world, rank)
                         : tar_shards(world, rank, turn, arguments.count, width, arguments.shares);
  shards.own = shards.own.times(width);
  for (TarShards::Shard& shard : shards.others) shard.range = shard.range.times(width);
  return shards;
}

/// The ranks with this place at their hosts. Bit r: rank r.
std::uint64_t owners_of(const hosts::HostLayout& layout, std::uint32_t place) {
  std::uint64_t ranks = 0;
  for (const std::vector<Rank>& host : layout.hosts) ranks |= bit(host[place]);
  return ranks;
}

}  // namespace

CallLayout::CallLayout(const CallArguments& arguments, Coding* coding, std::uint16_t world,
                       Rank rank, std::uint32_t turn, std::uint32_t slot_bytes)
    : shards_(shards_of(arguments, coding, world, rank, turn)),
      partners_(first_ranks(world) & ~bit(rank)),
      slot_bytes_(coding != nullptr ? coding->row_bytes() : slot_bytes),
      slot_stride_(coding != nullptr ? std::uint64_t{world} * coding->row_pitch_bytes()
                                     : slot_bytes),
      element_bytes_(static_cast<std::uint32_t>(tarpon::element_bytes(arguments.type))),
      gathers_(arguments.parts == nullptr),
      elements_(gathers_ ? Range{0, arguments.count} : arguments.parts->output(rank)),
      positions_(coding != nullptr ? coding->layout().coded_count() : elements_.count),
      input_(coding != nullptr ? coding->data() : arguments.bucket_input(rank)),
      result_(coding != nullptr ? coding->data() : arguments.bucket_output(rank)) {}

std::uint64_t CallLayout::lost_with_owners(std::uint64_t gone, std::uint64_t owners) const {
  std::uint64_t lost = gone;
  for (const Rank owner : ranks_of(owners & gone)) lost |= carried_by(owner);
  return lost;
}

CallLayout::CallLayout(const AllreduceArguments& arguments, const HostPlan& plan,
                       const hosts::HostLayout& layout, std::uint32_t host, std::uint32_t self,
                       std::uint32_t turn, std::uint32_t slot_bytes)
    : partners_(0),
      slot_bytes_(slot_bytes),
      slot_stride_(slot_bytes),
      element_bytes_(static_cast<std::uint32_t>(tarpon::element_bytes(arguments.type))),
      elements_{0, arguments.count},
      positions_(arguments.count),
      input_(static_cast<const std::byte*>(arguments.output)),
      result_(static_cast<std::byte*>(arguments.output)) {
  const std::uint32_t hosts = plan.hosts();
  const auto take = [&](std::uint32_t of, std::uint32_t owner) {
    const Range range =
        plan.shard(owner, shard_of(static_cast<Rank>(of), turn, hosts)).times(element_bytes_);
    const Rank rank = layout.hosts[of][owner];
    if (owner == self && of == host) {
      shards_.own = range;
      return;
    }
    if (owner == self) partners_ |= bit(rank);
    shards_.others.push_back({rank, range});
    owners_.push_back(owners_of(layout, owner));
    providers_.push_back(owner == self ? rank : layout.hosts[host][owner]);
  };
  if (self < plan.owners()) own_owners_ = owners_of(layout, self);
  for (const std::vector<Rank>& ranks : layout.hosts) {
    for (const Rank rank : ranks) {
      if (carried_.size() <= rank) carried_.resize(rank + 1u);
      carried_[rank] = mask_of(ranks);
    }
  }
  // This rank's own slice comes first: its messages have turns, as in TAR.
  for (std::uint32_t distance = 0; distance < plan.owners(); ++distance) {
    const std::uint32_t owner = self < plan.owners() ? (self + distance) % plan.owners() : distance;
    for (std::uint32_t turns = 0; turns < hosts; ++turns) take((host + turns) % hosts, owner);
  }
}

}  // namespace tarpon
