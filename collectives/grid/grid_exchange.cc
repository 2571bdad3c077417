#include "collectives/grid/grid_exchange.h"

#include <cstring>
#include <utility>

namespace tarpon::grid {
namespace {

Report empty_exchange(const CollectiveArguments& arguments) {
  Report report;
  report.collective = arguments.collective;
  report.tag = arguments.tag;
  return report;
}

}  // namespace

bool GridExchange::is_there(const CollectiveArguments& arguments) {
  const Collective what = arguments.collective;
  const bool known = what == Collective::broadcast || what == Collective::all_gather ||
                     what == Collective::reduce_scatter;
  return known && arguments.mode == Mode::exact;
}

std::string GridExchange::wrong(const GridParts& parts, const CollectiveArguments& arguments) {
  if (!arguments.refusal.empty()) return arguments.refusal;
  if (arguments.deadline <= Duration::zero()) return "the deadline must be positive";
  return CallArguments(arguments, parts.layout.world_size(), parts.self).wrong;
}

GridExchange::Counts GridExchange::calls_of(const GridParts& parts,
                                            const CollectiveArguments& arguments) {
  switch (arguments.collective) {
    case Collective::broadcast: {
      const Rank root = arguments.root;
      const bool carries =
          root < parts.layout.world_size() && parts.layout.place_of(root) == parts.own_place();
      return {0, carries ? 1u : 0u, 1};
    }
    case Collective::all_gather:
      return {0, 1, 1};
    default:
      return {1, 1, 0};
  }
}

GridExchange::GridExchange(const GridParts& parts, const CollectiveArguments& arguments,
                           bool refused, std::shared_ptr<GridCall> before, Time submitted)
    : GridCall({parts, std::move(before), submitted, false}, empty_exchange(arguments),
               arguments.deadline, calls_of(parts, arguments), 0),
      arguments_(arguments),
      width_(element_bytes(arguments.type)),
      divides_last_(arguments.collective == Collective::reduce_scatter &&
                    divides_last(arguments.function, arguments.type)) {
  if (refused || arguments.collective == Collective::broadcast) return;
  part_of_ = CollectiveParts::of(arguments, parts.layout.world_size(), parts.self).parts;
  by_rail_.resize(part_of_.back().end() * width_);
  rail_.resize(rail_count(parts.own_place()) * width_);
  if (arguments.collective != Collective::reduce_scatter) return;
  const auto* const input = static_cast<const std::byte*>(arguments.input);
  for_each_part([&](const Range& part, std::uint64_t at) {
    std::memcpy(by_rail_.data() + at, input + part.first * width_, part.count * width_);
  });
}

Range GridExchange::part(Rank rank) const {
  return part_of_[rank];
}

/// visit(part, byte in by_rail_), for all ranks.
template <typename Visit>
void GridExchange::for_each_part(Visit visit) const {
  std::uint64_t at = 0;
  for (std::uint32_t place = 0; place < parts().layout.places(); ++place) {
    for (const Rank rank : parts().layout.rail(place)) {
      if (part(rank).count > 0) visit(part(rank), at);
      at += part(rank).count * width_;
    }
  }
}

std::uint64_t GridExchange::rail_count(std::uint32_t place) const {
  std::uint64_t sum = 0;
  for (const Rank rank : parts().layout.rail(place)) sum += count_of(rank);
  return sum;
}

std::vector<std::uint64_t> GridExchange::rail_counts() const {
  std::vector<std::uint64_t> counts;
  for (const Rank rank : parts().rail_ranks()) counts.push_back(count_of(rank));
  return counts;
}

std::vector<std::uint64_t> GridExchange::host_counts() const {
  std::vector<std::uint64_t> counts;
  for (std::uint32_t place = 0; place < parts().layout.places(); ++place) {
    counts.push_back(rail_count(place));
  }
  return counts;
}

CollectiveArguments GridExchange::call_for(Collective collective) const {
  CollectiveArguments call{.collective = collective};
  call.type = arguments_.type;
  if (reduces(collective)) {
    call.function = divides_last_ ? ReduceOp::sum : arguments_.function;
    call.custom = arguments_.custom;
  }
  return call;
}

CallArguments GridExchange::in_host(const CollectiveArguments& call) const {
  return {call, parts().layout.places(), place()};
}

CallArguments GridExchange::on_rail(const CollectiveArguments& call) const {
  return {call, parts().layout.hosts(), host()};
}

CallArguments GridExchange::make(Stage stage, std::uint64_t) {
  if (arguments_.collective == Collective::broadcast) return broadcast_call(stage);
  return arguments_.collective == Collective::all_gather ? all_gather_call(stage)
                                                         : reduce_scatter_call(stage);
}

CallArguments GridExchange::broadcast_call(Stage stage) const {
  const Rank root = arguments_.root;
  CollectiveArguments call = call_for(Collective::broadcast);
  call.count = arguments_.count;
  call.output = arguments_.output;
  // Behind the root's rail its ranks pass on what they have received.
  call.input = parts().self == root ? arguments_.input : arguments_.output;
  call.root = static_cast<Rank>(stage == rail ? parts().layout.host_of(root)
                                              : parts().layout.place_of(root));
  return stage == rail ? on_rail(call) : in_host(call);
}

CallArguments GridExchange::all_gather_call(Stage stage) {
  CollectiveArguments call = call_for(Collective::all_gather);
  if (stage == rail) {
    call.input = arguments_.input;
    call.output = rail_.data();
    call.counts = rail_counts();
    return on_rail(call);
  }
  call.input = rail_.data();
  call.output = by_rail_.data();
  call.counts = host_counts();
  return in_host(call);
}

CallArguments GridExchange::reduce_scatter_call(Stage stage) {
  CollectiveArguments call = call_for(Collective::reduce_scatter);
  if (stage == scatter) {
    call.input = by_rail_.data();
    call.output = rail_.data();
    call.counts = host_counts();
    return in_host(call);
  }
  call.input = rail_.data();
  call.output = arguments_.output;
  call.counts = rail_counts();
  return on_rail(call);
}

std::uint64_t GridExchange::note_end(Stage stage, std::uint64_t) {
  const Collective what = arguments_.collective;
  if (what == Collective::reduce_scatter && stage == rail && divides_last_) {
    divide(arguments_.output, count_of(parts().self), arguments_.type);
  }
  if (what == Collective::all_gather && stage == gather) {
    auto* const output = static_cast<std::byte*>(arguments_.output);
    for_each_part([&](const Range& part, std::uint64_t at) {
      std::memcpy(output + part.first * width_, by_rail_.data() + at, part.count * width_);
    });
  }
  return 0;
}

}  // namespace tarpon::grid
