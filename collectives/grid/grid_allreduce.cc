#include "collectives/grid/grid_allreduce.h"

#include <algorithm>
#include <utility>

namespace tarpon::grid {
namespace {

/// A chunk is whole slices of whole cache lines. A bound is that of one call, so then the bucket is
/// one chunk.
std::uint64_t chunk_size(const AllreduceArguments& arguments, std::uint32_t places) {
  if (may_run_bounded(arguments) && arguments.bound) {
    return std::max<std::uint64_t>(arguments.count, 1);
  }
  return GridAllreduce::kChunkBytes / element_bytes(arguments.type) * places;
}

std::uint64_t chunks_of(const AllreduceArguments& arguments, std::uint32_t places) {
  const std::uint64_t size = chunk_size(arguments, places);
  return std::max<std::uint64_t>(1, arguments.count / size + (arguments.count % size != 0));
}

Range slice_of(Range chunk, std::size_t width, std::uint32_t places, std::uint32_t place) {
  const Range part = ShardLayout{chunk.count, width, places}.elements(place);
  return {chunk.first + part.first, part.count};
}

/// All chunks but the last are full, and have slices of one size.
std::uint64_t slice_elements(const AllreduceArguments& arguments, const GridParts& parts) {
  const std::uint32_t places = parts.layout.places();
  const std::uint64_t size = chunk_size(arguments, places), full = arguments.count / size;
  const auto slice = [&](std::uint64_t count) {
    return slice_of({0, count}, element_bytes(arguments.type), places, parts.own_place()).count;
  };
  return full * slice(size) + slice(arguments.count % size);
}

std::vector<std::uint64_t> counts_of(std::uint64_t elements, std::size_t width,
                                     std::uint32_t places) {
  std::vector<std::uint64_t> counts;
  for (std::uint32_t place = 0; place < places; ++place) {
    counts.push_back(slice_of({0, elements}, width, places, place).count);
  }
  return counts;
}

Report empty_report(const AllreduceArguments& arguments) {
  Report report;
  report.tag = arguments.tag;
  report.mode = arguments.mode;
  return report;
}

}  // namespace

GridAllreduce::GridAllreduce(const GridParts& parts, const AllreduceArguments& arguments,
                             std::shared_ptr<GridCall> before, Time submitted)
    : GridCall(
          {parts, std::move(before), submitted, may_run_bounded(arguments)},
          empty_report(arguments), arguments.deadline,
          {chunks_of(arguments, parts.layout.places()), chunks_of(arguments, parts.layout.places()),
           chunks_of(arguments, parts.layout.places())},
          slice_elements(arguments, parts)),
      arguments_(arguments),
      chunk_size_(chunk_size(arguments, parts.layout.places())),
      // A bounded call divides by the hosts that came.
      divides_last_(divides_last(arguments.function, arguments.type) &&
                    !may_run_bounded(arguments)) {}

Range GridAllreduce::chunk_elements(std::uint64_t chunk) const {
  const std::uint64_t first = chunk * chunk_size_;
  return {first, std::min(chunk_size_, arguments_.count - first)};
}

/// This rank's slice of a chunk, in the bucket.
Range GridAllreduce::slice(std::uint64_t chunk) const {
  return slice_of(chunk_elements(chunk), element_bytes(arguments_.type), parts().layout.places(),
                  place());
}

std::byte* GridAllreduce::output(std::uint64_t element) const {
  return static_cast<std::byte*>(arguments_.output) + element * element_bytes(arguments_.type);
}

CallArguments GridAllreduce::make(Stage stage, std::uint64_t chunk) {
  if (stage == scatter) return scatter_call(chunk);
  return stage == rail ? rail_call(chunk) : gather_call(chunk);
}

std::uint64_t GridAllreduce::note_end(Stage stage, std::uint64_t chunk) {
  const Range mine = slice(chunk);
  if (stage == rail && divides_last_) divide(output(mine.first), mine.count, arguments_.type);
  return mine.count;
}

CallArguments GridAllreduce::scatter_call(std::uint64_t chunk) const {
  const Range all = chunk_elements(chunk);
  const std::size_t width = element_bytes(arguments_.type);
  CollectiveArguments call{.collective = Collective::reduce_scatter};
  call.input = static_cast<const std::byte*>(arguments_.input) + all.first * width;
  call.output = output(slice(chunk).first);
  call.counts = counts_of(all.count, width, parts().layout.places());
  call.type = arguments_.type;
  call.function = divides_last_ ? ReduceOp::sum : arguments_.function;
  call.custom = arguments_.custom;
  return {call, parts().layout.places(), place()};
}

CallArguments GridAllreduce::rail_call(std::uint64_t chunk) const {
  const Range mine = slice(chunk);
  AllreduceArguments call = arguments_;
  call.input = call.output = output(mine.first);
  call.count = mine.count;
  if (divides_last_) call.function = ReduceOp::sum;
  call.algorithm = Algorithm::automatic;
  return call;
}

CallArguments GridAllreduce::gather_call(std::uint64_t chunk) const {
  const Range all = chunk_elements(chunk);
  CollectiveArguments call{.collective = Collective::all_gather};
  call.input = output(slice(chunk).first);
  call.output = output(all.first);
  call.counts = counts_of(all.count, element_bytes(arguments_.type), parts().layout.places());
  call.type = arguments_.type;
  return {call, parts().layout.places(), place()};
}

}  // namespace tarpon::grid
