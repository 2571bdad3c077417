#include "transport/operation/message.h"

namespace tarpon {

void SlotLengths::assign(std::uint64_t bytes, std::span<const std::uint64_t> ranges,
                         std::uint32_t slot_bytes) {
  const std::uint64_t whole[] = {bytes};
  if (ranges.empty()) ranges = whole;
  slot_bytes_ = slot_bytes;
  slots_ = 0;
  last_bytes_ = 0;
  short_.clear();
  for (const std::uint64_t range : ranges) {
    if (slots_ > 0 && last_bytes_ < slot_bytes) short_.push_back({slots_ - 1, last_bytes_});
    slots_ += slot_count(range, slot_bytes);
    const auto rest = static_cast<std::uint32_t>(range % slot_bytes);
    last_bytes_ = rest == 0 && range > 0 ? slot_bytes : rest;
  }
}

std::uint32_t SlotLengths::inner(std::uint32_t slot) const {
  const auto found = std::lower_bound(
      short_.begin(), short_.end(), slot,
      [](const ShortSlot& one, std::uint32_t number) { return one.slot < number; });
  return found != short_.end() && found->slot == slot ? found->bytes : slot_bytes_;
}

void ReceiveMessage::presume_lost(std::uint32_t flow, std::uint32_t below, Time now) {
  flows[flow].lost_below = std::max(flows[flow].lost_below, std::min(below, slots));
  if (gap_since != kNever) return;
  gap_since = now;
  for (FlowProgress& one : flows) one.gap_below = one.lost_below;
}

void ReceiveMessage::presume_all_lost(Time now) {
  // All eight flows: their number may not be known yet.
  for (FlowProgress& one : flows) one.lost_below = slots;
  presume_lost(0, slots, now);
}

void ReceiveMessage::presume_overtaken_lost(Time now) {
  for (std::uint32_t flow = 0; flow < stripes.flows; ++flow) {
    if ((gaps >> flow & 1) != 0) presume_lost(flow, flows[flow].end, now);
  }
}

std::size_t ReceiveMessage::missing(const FlowsProgress& of_flows,
                                    std::uint32_t FlowProgress::*below, std::uint32_t limit,
                                    std::uint32_t most_slots, std::span<tarpon_range> out) const {
  limit = std::min(limit, slots);
  if (stripes.flows == 1) {
    return presence.missing(std::min(limit, of_flows[0].*below), most_slots, out);
  }
  std::size_t runs = 0;
  for (std::uint32_t slot = 0; slot < limit && most_slots > 0;) {
    const std::uint32_t stripe_end = std::min((slot / stripes.length + 1) * stripes.length, limit);
    const std::uint32_t stop = std::min(stripe_end, of_flows[stripes.flow_of(slot)].*below);
    tarpon_range run;
    if (stop <= slot || presence.missing(stop, most_slots, {&run, 1}, slot) == 0) {
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

std::size_t ReceiveMessage::lost(std::uint32_t limit, std::uint32_t most_slots,
                                 std::span<tarpon_range> out) const {
  return missing(flows, &FlowProgress::lost_below, limit, most_slots, out);
}

std::size_t ReceiveMessage::lost_at_gap(std::uint32_t most_slots,
                                        std::span<tarpon_range> out) const {
  return missing(flows, &FlowProgress::gap_below, slots, most_slots, out);
}

std::size_t ReceiveMessage::lost_or_first(std::uint32_t limit, std::uint32_t most_slots,
                                          std::span<tarpon_range> out) const {
  std::array<tarpon_range, TARPON_MAX_FLOWS> firsts;
  const std::size_t count = first_missing(limit, firsts);
  FlowsProgress presumed = flows;
  for (const tarpon_range& one : std::span(firsts).first(count)) {
    std::uint32_t& below = presumed[stripes.flow_of(one.first)].lost_below;
    below = std::max(below, one.first + 1);
  }
  return missing(presumed, &FlowProgress::lost_below, limit, most_slots, out);
}

std::size_t ReceiveMessage::first_missing(std::uint32_t limit, std::span<tarpon_range> out) const {
  limit = std::min(limit, slots);
  if (stripes.flows == 1) return presence.missing(limit, 1, out);
  std::size_t found = 0;
  std::uint32_t seen = 0;  // bit f: a slot of flow f was found
  for (std::uint32_t start = 0; start < limit && found < stripes.flows; start += stripes.length) {
    const std::uint32_t bit = 1u << stripes.flow_of(start);
    if ((seen & bit) != 0) continue;
    const std::uint32_t stop = std::min(start + stripes.length, limit);
    if (presence.missing(stop, 1, out.subspan(found, 1), start) == 0) continue;
    seen |= bit;
    ++found;
  }
  return found;
}

}  // namespace tarpon
