#include "tools/collective/measured_collective.h"

#include <algorithm>

namespace tarpon {
namespace {

double twice_the_others(double ranks) {
  return 2 * (ranks - 1) / ranks;
}

double the_others(double ranks) {
  return (ranks - 1) / ranks;
}

double everything(double) {
  return 1;
}

}  // namespace

const std::vector<MeasuredCollective>& measured_collectives() {
  static const std::vector<MeasuredCollective> rows{
      {Collective::allreduce, "all_reduce", "average or sum arrays over ranks; benchmark it", false,
       Holds::whole, Holds::whole, twice_the_others},
      {Collective::all_gather, "all_gather",
       "give the parts of all ranks to every rank, as a benchmark", true, Holds::part, Holds::whole,
       the_others},
      {Collective::reduce_scatter, "reduce_scatter",
       "give every rank its part of the reduction, as a benchmark", true, Holds::whole, Holds::part,
       the_others},
      {Collective::broadcast, "broadcast",
       "give the data of the root to every rank, as a benchmark", false, Holds::root, Holds::whole,
       everything},
      {Collective::reduce, "reduce", "give the reduction to the root, as a benchmark", false,
       Holds::whole, Holds::root, everything},
      {Collective::all_to_all, "alltoall",
       "give a part of every rank to every rank, as a benchmark", true, Holds::whole, Holds::whole,
       the_others},
      {Collective::gather, "gather", "give the parts of all ranks to the root, as a benchmark",
       true, Holds::part, Holds::root, the_others},
      {Collective::scatter, "scatter",
       "give every rank its part of the root's data, as a benchmark", true, Holds::root,
       Holds::part, the_others},
      {Collective::send, "sendrecv",
       "send to the next rank and receive from the one before, as a benchmark", false, Holds::whole,
       Holds::whole, everything}};
  return rows;
}

const MeasuredCollective& row_of(Collective collective) {
  const auto& rows = measured_collectives();
  return *std::find_if(rows.begin(), rows.end(),
                       [&](const MeasuredCollective& row) { return row.collective == collective; });
}

std::uint64_t MeasuredCollective::count_in(std::uint64_t bytes, std::size_t element_bytes,
                                           std::uint32_t ranks) const {
  constexpr std::uint64_t kAlignment = 16;
  const std::uint64_t elements = bytes / element_bytes;
  if (!divided) return elements;
  const std::uint64_t part = elements / ranks;
  return part - part % (kAlignment / element_bytes);
}

std::uint64_t MeasuredCollective::whole_of(std::uint64_t count, std::uint32_t ranks) const {
  return divided ? count * ranks : count;
}

Rank rank_after(Rank rank, std::uint32_t ranks) {
  return static_cast<Rank>((rank + 1) % ranks);
}

Rank rank_before(Rank rank, std::uint32_t ranks) {
  return static_cast<Rank>((rank + ranks - 1) % ranks);
}

std::optional<HeldElements> held(const MeasuredCollective& row, Holds holds,
                                 const CallShape& shape) {
  if (holds == Holds::part) return HeldElements{shape.rank * shape.count, shape.count};
  if (holds == Holds::root && shape.rank != shape.root) return std::nullopt;
  return HeldElements{0, row.whole_of(shape.count, shape.ranks)};
}

std::vector<ExpectedPiece> expected_output(const MeasuredCollective& row, const CallShape& shape) {
  const std::optional<HeldElements> output = held(row, row.output, shape);
  if (!output) return {};
  if (reduces(row.collective)) return {{0, output->count, std::nullopt, output->first}};
  if (is_message(row.collective)) {
    return {{0, output->count, rank_before(shape.rank, shape.ranks), output->first}};
  }
  if (row.input == Holds::root) return {{0, output->count, shape.root, output->first}};
  // A part of each rank: all that it has, or the part for this rank.
  const std::uint64_t first = row.input == Holds::part ? 0 : shape.rank * shape.count;
  std::vector<ExpectedPiece> pieces;
  for (Rank from = 0; from < shape.ranks; ++from) {
    pieces.push_back({from * shape.count, shape.count, from, first});
  }
  return pieces;
}

}  // namespace tarpon
