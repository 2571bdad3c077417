#include "collectives/engine/schedules/exchange_plan.h"

#include <algorithm>
#include <utility>

namespace tarpon {
namespace {

/// Slices begin at multiples of kShardAlignment, so that no two of them share a cache line.
std::uint64_t piece_elements(std::uint64_t place_bytes, std::uint64_t slices,
                             std::size_t element_bytes) {
  const std::uint64_t units = std::max<std::uint64_t>(1, place_bytes / slices / kShardAlignment);
  return units * kShardAlignment / element_bytes;
}

/// Whether each host has data for all hosts, or of all hosts.
bool is_sliced(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_gather;
}

/// Whether the data goes along the rails.
bool uses_rails(Collective collective) {
  return is_sliced(collective) || collective == Collective::broadcast ||
         collective == Collective::reduce;
}

}  // namespace

bool ExchangePlan::suits(const CollectiveParts* parts, const hosts::HostLayout& layout) {
  if (parts != nullptr && (is_message(parts->collective) || parts->by_pair)) return false;
  const std::size_t ranks = layout.hosts[0].size();
  return ranks > 1 && std::all_of(layout.hosts.begin(), layout.hosts.end(),
                                  [&](const auto& host) { return host.size() == ranks; });
}

ExchangePlan::ExchangePlan(const CollectiveParts& parts, const hosts::HostLayout& layout,
                           std::uint32_t host, std::size_t element_bytes, std::uint64_t place_bytes)
    : parts_(parts),
      layout_(layout),
      host_(host),
      element_bytes_(element_bytes),
      slices_(is_sliced(parts.collective) ? hosts() : 1),
      piece_(piece_elements(place_bytes, std::uint64_t{shares() ? 1 : local()} * slices_,
                            element_bytes)),
      steps_(static_cast<std::uint32_t>(
          std::max<std::uint64_t>(1, (longest() + piece_ - 1) / piece_))) {}

bool ExchangePlan::shares() const {
  return parts_.collective == Collective::all_gather ||
         parts_.collective == Collective::broadcast || parts_.collective == Collective::gather ||
         parts_.collective == Collective::reduce;
}

std::uint32_t ExchangePlan::root_place() const {
  const std::vector<Rank>& ranks = layout_.hosts[layout_.host_of(parts_.root)];
  return static_cast<std::uint32_t>(std::find(ranks.begin(), ranks.end(), parts_.root) -
                                    ranks.begin());
}

bool ExchangePlan::passes(std::uint32_t from, std::uint32_t to) const {
  switch (parts_.collective) {
    case Collective::broadcast:
      return from == root_place();
    case Collective::reduce:
      return to == root_place();
    case Collective::scatter:
      return rank(from) == parts_.root;
    case Collective::gather:
      return rank(to) == parts_.root;
    case Collective::allreduce:
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::send:
    case Collective::receive:
      break;
  }
  return true;
}

bool ExchangePlan::is_passed_on(std::uint32_t from, std::uint32_t slice) const {
  if (parts_.collective == Collective::all_gather) return slice != own_slice();
  return parts_.collective == Collective::broadcast && rank(from) != parts_.root;
}

Range ExchangePlan::source(std::uint32_t from, std::uint32_t to, std::uint32_t slice) const {
  if (has_one_part()) return {0, parts_.count};
  const std::uint32_t place = shares() ? from : to;
  return parts_.parts[slices_ == 1 ? rank(place) : layout_.hosts[slice][place]];
}

Range ExchangePlan::target(std::uint32_t from, std::uint32_t to, std::uint32_t slice) const {
  if (parts_.collective == Collective::all_to_all) return parts_.parts[rank(from)];
  const Range all = source(from, to, slice);
  return adds() && hosts() > 1 ? Range{rail_offset(to, slice), all.count} : all;
}

Range ExchangePlan::piece(Range all, std::uint32_t step) const {
  const std::uint64_t first = std::min(all.count, step * piece_);
  return {all.first + first, std::min(piece_, all.count - first)};
}

std::uint64_t ExchangePlan::reached(const Range& all, std::uint32_t steps) const {
  return std::min(all.count, steps * piece_);
}

std::uint64_t ExchangePlan::longest() const {
  if (has_one_part()) return parts_.count;
  const auto longest =
      std::max_element(parts_.parts.begin(), parts_.parts.end(),
                       [](const Range& a, const Range& b) { return a.count < b.count; });
  return longest->count;
}

bool ExchangePlan::has_rail_bucket(std::uint32_t self) const {
  return adds() && hosts() > 1 && uses_rail(self);
}

std::uint64_t ExchangePlan::rail_offset(std::uint32_t self, std::uint32_t slice) const {
  std::uint64_t offset = 0;
  for (std::uint32_t before = 0; before < slice; ++before) {
    offset += source(self, self, before).count;
  }
  return offset;
}

std::uint64_t ExchangePlan::rail_elements(std::uint32_t self) const {
  return rail_offset(self, slices_);
}

Schedule ExchangePlan::schedule(std::uint32_t self) const {
  Schedule schedule;
  if (hosts() > 1 && !uses_rails(parts_.collective)) {
    schedule = to_other_hosts(self);
  } else if (hosts() > 1 && uses_rail(self)) {
    schedule = along_rail(self);
  }
  if (schedule.stages.empty()) schedule.stages.resize(1);
  return schedule;
}

/// The same collective among the ranks of the rail, one for each host.
Schedule ExchangePlan::along_rail(std::uint32_t self) const {
  CollectiveParts rail;
  rail.collective = parts_.collective;
  rail.count = parts_.count;
  if (has_one_part()) rail.root = static_cast<Rank>(layout_.host_of(parts_.root));
  for (std::uint32_t slice = 0; slice < slices_ && slices_ > 1; ++slice) {
    const Range part = source(self, self, slice);
    rail.parts.push_back(adds() ? Range{rail_offset(self, slice), part.count} : part);
  }
  Schedule schedule = collective_schedule(rail, hosts(), static_cast<Rank>(host_), element_bytes_);
  for (Schedule::Stage& stage : schedule.stages) {
    for (auto* const messages : {&stage.sends, &stage.receives}) {
      for (Schedule::Message& message : *messages) message.peer = layout_.hosts[message.peer][self];
    }
  }
  return schedule;
}

/// The messages of the collective without hosts that leave this host, or come to it.
Schedule ExchangePlan::to_other_hosts(std::uint32_t self) const {
  const auto world = static_cast<std::uint32_t>(parts_.parts.size());
  Schedule schedule = collective_schedule(parts_, world, rank(self), element_bytes_);
  const std::vector<Rank>& near = layout_.hosts[host_];
  for (Schedule::Stage& stage : schedule.stages) {
    for (auto* const messages : {&stage.sends, &stage.receives}) {
      std::erase_if(*messages, [&](const Schedule::Message& message) {
        return std::find(near.begin(), near.end(), message.peer) != near.end();
      });
    }
  }
  return schedule;
}

}  // namespace tarpon
