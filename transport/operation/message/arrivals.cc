#include "transport/operation/message/arrivals.h"

namespace tarpon {

void Arrivals::reset(std::uint32_t slots) {
  presence_.reset(slots);
  stripes_ = {};
  knows_stripes_ = false;
  gaps_ = 0;
  flows_ = {};
  gap_since_ = kNever;
}

void Arrivals::insert(std::uint32_t first, std::uint32_t count) {
  presence_.insert(first, count);
  const std::uint32_t number = stripes_.flow_of(first);
  FlowProgress& flow = flows_[number];
  flow.end = std::max(flow.end, first + count);
  flow.count += count;
  const bool gap = flow.count < stripes_.below(number, flow.end);
  const auto bit = static_cast<std::uint8_t>(1u << number);
  gaps_ = static_cast<std::uint8_t>(gap ? gaps_ | bit : gaps_ & ~bit);
}

void Arrivals::note_order(std::uint32_t slot, Time now) {
  const std::uint32_t flow = stripes_.flow_of(slot);
  if (has_gap(flow)) {
    presume_lost(flow, flows_[flow].end, now);
  } else if (gaps_ == 0) {
    gap_since_ = kNever;
  }
}

void Arrivals::note_repair(std::uint32_t slot, std::uint32_t below, Time now) {
  presume_lost(stripes_.flow_of(slot), below, now);
  gap_since_ = now;
}

void Arrivals::presume_lost(std::uint32_t flow, std::uint32_t below, Time now) {
  flows_[flow].lost_below = std::max(flows_[flow].lost_below, std::min(below, presence_.slots()));
  if (gap_since_ != kNever) return;
  gap_since_ = now;
  for (FlowProgress& one : flows_) one.gap_below = one.lost_below;
}

void Arrivals::presume_all_lost(Time now) {
  // All eight flows: their number may not be known yet.
  for (FlowProgress& one : flows_) one.lost_below = presence_.slots();
  presume_lost(0, presence_.slots(), now);
}

std::size_t Arrivals::take_gap(Time now, std::span<tarpon_range> out) {
  gap_since_ = kNever;
  const std::size_t runs =
      missing(flows_, &FlowProgress::gap_below, presence_.slots(), kAllSlots, out);
  for (const tarpon_range& run : out.first(runs)) {
    for (std::uint32_t slot = run.first; slot < run.first + run.count; ++slot) insert(slot, 1);
  }
  for (std::uint32_t flow = 0; flow < stripes_.flows; ++flow) {
    if (has_gap(flow)) presume_lost(flow, flows_[flow].end, now);
  }
  return runs;
}

std::size_t Arrivals::missing(const FlowsProgress& of_flows, std::uint32_t FlowProgress::*below,
                              std::uint32_t limit, std::uint32_t most_slots,
                              std::span<tarpon_range> out) const {
  limit = std::min(limit, presence_.slots());
  if (stripes_.flows == 1) {
    return presence_.missing(std::min(limit, of_flows[0].*below), most_slots, out);
  }
  std::size_t runs = 0;
  for (std::uint32_t slot = 0; slot < limit && most_slots > 0;) {
    const std::uint32_t stripe_end =
        std::min((slot / stripes_.length + 1) * stripes_.length, limit);
    const std::uint32_t stop = std::min(stripe_end, of_flows[stripes_.flow_of(slot)].*below);
    tarpon_range run;
    if (stop <= slot || presence_.missing(stop, most_slots, {&run, 1}, slot) == 0) {
      slot = stripe_end;
      continue;
    }
    if (runs > 0 && out[runs - 1].first + out[runs - 1].count == run.first) {
      out[runs - 1].count += run.count;
    } else if (runs < out.size()) {
      out[runs++] = run;
    } else {
      break;
    }
    most_slots -= run.count;
    slot = run.first + run.count;
  }
  return runs;
}

std::size_t Arrivals::lost(std::uint32_t limit, std::uint32_t most_slots,
                           std::span<tarpon_range> out) const {
  return missing(flows_, &FlowProgress::lost_below, limit, most_slots, out);
}

std::size_t Arrivals::lost_or_first(std::uint32_t limit, std::uint32_t most_slots,
                                    std::span<tarpon_range> out) const {
  std::array<tarpon_range, TARPON_MAX_FLOWS> firsts;
  const std::size_t count = first_missing(limit, firsts);
  FlowsProgress presumed = flows_;
  for (const tarpon_range& one : std::span(firsts).first(count)) {
    std::uint32_t& below = presumed[stripes_.flow_of(one.first)].lost_below;
    below = std::max(below, one.first + 1);
  }
  return missing(presumed, &FlowProgress::lost_below, limit, most_slots, out);
}

std::size_t Arrivals::first_missing(std::uint32_t limit, std::span<tarpon_range> out) const {
  limit = std::min(limit, presence_.slots());
  if (stripes_.flows == 1) return presence_.missing(limit, 1, out);
  std::size_t found = 0;
  std::uint32_t seen = 0;  // bit f: a slot of flow f was found
  for (std::uint32_t start = 0; start < limit && found < stripes_.flows; start += stripes_.length) {
    const std::uint32_t bit = 1u << stripes_.flow_of(start);
    if ((seen & bit) != 0) continue;
    const std::uint32_t stop = std::min(start + stripes_.length, limit);
    if (presence_.missing(stop, 1, out.subspan(found, 1), start) == 0) continue;
    seen |= bit;
    ++found;
  }
  return found;
}

}  // namespace tarpon
