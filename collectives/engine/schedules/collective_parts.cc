#include "collectives/engine/schedules/collective_parts.h"

#include <algorithm>
#include <array>

namespace tarpon {
namespace {

using Pieces = std::array<Schedule::Piece, 1>;

/// The ranks after `rank`, in order, modulo the world. A rank receives from them in this order, and
/// sends to them in the reverse order, so that each rank is sent to by one rank at a time.
std::vector<Rank> successors(std::uint32_t world, Rank rank) {
  std::vector<Rank> ranks;
  ranks.reserve(world - 1);
  for (std::uint32_t turn = 1; turn < world; ++turn) {
    ranks.push_back(static_cast<Rank>((rank + turn) % world));
  }
  return ranks;
}

/// A schedule with a chunk for each rank, its part, and one confirmed stage.
Schedule with_parts(const CollectiveParts& parts) {
  Schedule schedule;
  for (const Range& part : parts.parts) schedule.chunks.push_back({.elements = part});
  schedule.stages.resize(1);
  schedule.stages[0].confirmed = true;
  return schedule;
}

Schedule reduce_scatter(const CollectiveParts& parts, std::uint32_t world, Rank rank) {
  Schedule schedule = with_parts(parts);
  schedule.chunks[rank].additions = world - 1;
  Schedule::Stage& stage = schedule.stages[0];
  const std::vector<Rank> from = successors(world, rank);
  for (std::uint32_t turn = 1; turn < world; ++turn) {
    const Rank to = from[world - 1 - turn];
    schedule.add(stage.sends, to, Pieces{{{.chunk = to, .version = 0}}});
    schedule.add(stage.receives, from[turn - 1], Pieces{{{.chunk = rank, .version = turn}}});
  }
  return schedule;
}

Schedule all_gather(const CollectiveParts& parts, std::uint32_t world, Rank rank) {
  Schedule schedule = with_parts(parts);
  Schedule::Stage& stage = schedule.stages[0];
  stage.alike = true;
  const std::vector<Rank> from = successors(world, rank);
  for (std::uint32_t turn = 1; turn < world; ++turn) {
    schedule.add(stage.sends, from[world - 1 - turn], Pieces{{{.chunk = rank, .version = 0}}});
    schedule.chunks[from[turn - 1]].stored = true;
    schedule.add(stage.receives, from[turn - 1], Pieces{{{.chunk = from[turn - 1], .version = 1}}});
  }
  return schedule;
}

Schedule gather(const CollectiveParts& parts, std::uint32_t world, Rank rank) {
  Schedule schedule = with_parts(parts);
  Schedule::Stage& stage = schedule.stages[0];
  if (rank != parts.root) {
    schedule.add(stage.sends, parts.root, Pieces{{{.chunk = rank, .version = 0}}});
    return schedule;
  }
  for (const Rank from : successors(world, rank)) {
    schedule.chunks[from].stored = true;
    schedule.add(stage.receives, from, Pieces{{{.chunk = from, .version = 1}}});
  }
  return schedule;
}

Schedule scatter(const CollectiveParts& parts, std::uint32_t world, Rank rank) {
  Schedule schedule = with_parts(parts);
  Schedule::Stage& stage = schedule.stages[0];
  if (rank != parts.root) {
    schedule.chunks[rank].stored = true;
    schedule.add(stage.receives, parts.root, Pieces{{{.chunk = rank, .version = 1}}});
    return schedule;
  }
  for (const Rank to : successors(world, rank)) {
    schedule.add(stage.sends, to, Pieces{{{.chunk = to, .version = 0}}});
  }
  return schedule;
}

/// Chunk r is the part for rank r; chunk world + r that from rank r.
Schedule all_to_all(const CollectiveParts& parts, std::uint32_t world, Rank rank) {
  Schedule schedule;
  for (const Range& part : parts.sent) {
    schedule.chunks.push_back({.elements = part, .overwritten = true});
  }
  for (const Range& part : parts.parts) schedule.chunks.push_back({.elements = part});
  schedule.stages.resize(1);
  Schedule::Stage& stage = schedule.stages[0];
  stage.confirmed = true;
  const std::vector<Rank> from = successors(world, rank);
  for (std::uint32_t turn = 1; turn < world; ++turn) {
    const Rank to = from[world - 1 - turn];
    const std::uint32_t received = world + from[turn - 1];
    schedule.add(stage.sends, to, Pieces{{{.chunk = to, .version = 0}}});
    schedule.chunks[received].stored = true;
    schedule.add(stage.receives, from[turn - 1], Pieces{{{.chunk = received, .version = 1}}});
  }
  return schedule;
}

Schedule reduce(const CollectiveParts& parts, std::uint32_t world, Rank rank) {
  Schedule schedule;
  schedule.chunks.push_back({.elements = {0, parts.count}});
  schedule.stages.resize(1);
  Schedule::Stage& stage = schedule.stages[0];
  stage.confirmed = true;
  if (rank != parts.root) {
    schedule.add(stage.sends, parts.root, Pieces{{{.chunk = 0, .version = 0}}});
    return schedule;
  }
  schedule.chunks[0].additions = world - 1;
  std::uint32_t turn = 0;
  for (const Rank from : successors(world, rank)) {
    schedule.add(stage.receives, from, Pieces{{{.chunk = 0, .version = ++turn}}});
  }
  return schedule;
}

Schedule direct_broadcast(const CollectiveParts& parts, std::uint32_t world, Rank rank) {
  Schedule schedule;
  schedule.chunks.push_back({.elements = {0, parts.count}, .stored = rank != parts.root});
  schedule.stages.resize(1);
  Schedule::Stage& stage = schedule.stages[0];
  stage.confirmed = true;
  if (rank != parts.root) {
    schedule.add(stage.receives, parts.root, Pieces{{{.chunk = 0, .version = 1}}});
    return schedule;
  }
  for (const Rank to : successors(world, rank)) {
    schedule.add(stage.sends, to, Pieces{{{.chunk = 0, .version = 0}}});
  }
  return schedule;
}

Schedule message(const CollectiveParts& parts, Rank rank) {
  Schedule schedule;
  schedule.chunks.push_back({.elements = {0, parts.count}, .stored = rank == parts.receiver});
  schedule.stages.resize(1);
  Schedule::Stage& stage = schedule.stages[0];
  stage.confirmed = true;
  if (rank == parts.receiver) {
    schedule.add(stage.receives, parts.root, Pieces{{{.chunk = 0, .version = 1}}});
  } else {
    schedule.add(stage.sends, parts.receiver, Pieces{{{.chunk = 0, .version = 0}}});
  }
  return schedule;
}

/// Chunk i goes to the i-th rank after the root, which passes it on to the others.
Schedule scattered_broadcast(const CollectiveParts& parts, std::uint32_t world, Rank rank,
                             std::size_t element_bytes) {
  const ShardLayout layout{parts.count, element_bytes, world - 1};
  const std::vector<Rank> owners = successors(world, parts.root);
  Schedule schedule;
  for (std::uint32_t i = 0; i + 1 < world; ++i) {
    schedule.chunks.push_back({.elements = layout.elements(i), .stored = rank != parts.root});
  }
  schedule.stages.resize(2);
  for (Schedule::Stage& stage : schedule.stages) stage.confirmed = true;
  for (std::uint32_t i = 0; i + 1 < world; ++i) {
    const Pieces from_root{{{.chunk = i, .version = 0}}}, result{{{.chunk = i, .version = 1}}};
    if (rank == parts.root) {
      schedule.add(schedule.stages[0].sends, owners[i], from_root);
    } else if (rank == owners[i]) {
      schedule.add(schedule.stages[0].receives, parts.root, result);
    }
  }
  if (rank == parts.root) return schedule;
  const auto own =
      static_cast<std::uint32_t>(std::find(owners.begin(), owners.end(), rank) - owners.begin());
  for (std::uint32_t turn = 1; turn + 1 < world; ++turn) {
    const std::uint32_t from = (own + turn) % (world - 1);
    const std::uint32_t to = (own + world - 1 - turn) % (world - 1);
    schedule.add(schedule.stages[1].sends, owners[to], Pieces{{{.chunk = own, .version = 1}}});
    schedule.add(schedule.stages[1].receives, owners[from],
                 Pieces{{{.chunk = from, .version = 1}}});
  }
  return schedule;
}

Range part_or_none(const std::vector<Range>& parts, Rank rank) {
  return rank < parts.size() ? parts[rank] : Range{};
}

/// Parts that lie one after another: `counts` elements, or `count` each where that is empty.
std::vector<Range> laid_out(const std::vector<std::uint64_t>& counts, std::uint64_t count,
                            std::uint32_t world) {
  std::vector<Range> parts;
  std::uint64_t first = 0;
  for (Rank rank = 0; rank < world; ++rank) {
    parts.push_back({first, counts.empty() ? count : counts[rank]});
    first += parts.back().count;
  }
  return parts;
}

}  // namespace

CollectiveParts CollectiveParts::of(const CollectiveArguments& arguments, std::uint32_t world,
                                    Rank rank) {
  CollectiveParts result;
  result.collective = arguments.collective;
  const bool sends = arguments.collective == Collective::send;
  const bool message = is_message(arguments.collective);
  result.root = !message ? arguments.root : sends ? rank : arguments.peer;
  if (message) result.receiver = sends ? arguments.peer : rank;
  if (!has_parts(arguments.collective)) {
    result.count = arguments.count;
    return result;
  }
  const bool exchanges = arguments.collective == Collective::all_to_all;
  result.by_pair = exchanges && !arguments.counts.empty();
  result.parts =
      laid_out(exchanges ? arguments.output_counts : arguments.counts, arguments.count, world);
  if (exchanges) result.sent = laid_out(arguments.counts, arguments.count, world);
  result.count = result.parts.back().end();
  return result;
}

std::uint64_t CollectiveParts::hash() const {
  if (by_pair) return 1;
  const bool even = std::all_of(parts.begin(), parts.end(),
                                [this](const Range& part) { return part.count == parts[0].count; });
  if (even) return 0;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const Range& part : parts) hash = (hash ^ part.count) * 0x100000001b3;
  const std::uint64_t folded = (hash ^ hash >> 48) & 0xffffffffffff;
  return folded == 0 ? 1 : folded;
}

Range CollectiveParts::input(Rank rank) const {
  switch (collective) {
    case Collective::all_gather:
    case Collective::gather:
      return part_or_none(parts, rank);
    case Collective::broadcast:
    case Collective::scatter:
    case Collective::send:
    case Collective::receive:
      return rank == root ? Range{0, count} : Range{};
    case Collective::all_to_all:
      return {0, sent.back().end()};
    case Collective::allreduce:
    case Collective::reduce_scatter:
    case Collective::reduce:
      break;
  }
  return {0, count};
}

Range CollectiveParts::output(Rank rank) const {
  switch (collective) {
    case Collective::reduce_scatter:
    case Collective::scatter:
      return part_or_none(parts, rank);
    case Collective::reduce:
    case Collective::gather:
      return rank == root ? Range{0, count} : Range{};
    case Collective::send:
    case Collective::receive:
      return rank == receiver ? Range{0, count} : Range{};
    case Collective::allreduce:
    case Collective::all_gather:
    case Collective::broadcast:
    case Collective::all_to_all:
      break;
  }
  return {0, count};
}

CollectiveParts::OwnCopy CollectiveParts::own_copy(Rank rank) const {
  const Range own = part_or_none(parts, rank);
  switch (collective) {
    case Collective::all_gather:
      return {own.first, own.first, own.count};
    case Collective::all_to_all:
      return {sent[rank].first, own.first, own.count};
    case Collective::gather:
    case Collective::scatter:
      return rank == root ? OwnCopy{own.first, own.first, own.count} : OwnCopy{};
    case Collective::broadcast:
      return rank == root ? OwnCopy{0, 0, count} : OwnCopy{};
    case Collective::allreduce:
    case Collective::reduce_scatter:
    case Collective::reduce:
    case Collective::send:
    case Collective::receive:
      break;
  }
  return {};
}

Schedule collective_schedule(const CollectiveParts& parts, std::uint32_t world, Rank rank,
                             std::size_t element_bytes) {
  switch (parts.collective) {
    case Collective::reduce_scatter:
      return reduce_scatter(parts, world, rank);
    case Collective::all_gather:
      return all_gather(parts, world, rank);
    case Collective::reduce:
      return reduce(parts, world, rank);
    case Collective::gather:
      return gather(parts, world, rank);
    case Collective::scatter:
      return scatter(parts, world, rank);
    case Collective::all_to_all:
      return all_to_all(parts, world, rank);
    case Collective::send:
    case Collective::receive:
      return message(parts, rank);
    case Collective::allreduce:
    case Collective::broadcast:
      break;
  }
  const bool small = parts.count * element_bytes < kScatteredBroadcast;
  return small || world == 2 ? direct_broadcast(parts, world, rank)
                             : scattered_broadcast(parts, world, rank, element_bytes);
}

}  // namespace tarpon
