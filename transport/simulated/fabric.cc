#include "transport/simulated/fabric.h"

#include <algorithm>
#include <cmath>

namespace tarpon {
namespace {

constexpr std::uint32_t kBackgroundPacket = 1500;
constexpr Duration kWayBack = 50us;  // of TCP's acknowledgements, which meet no queue
constexpr std::uint64_t kIndexBits = 16;

/// Returns a seed for one link, so that its numbers do not depend on other links.
std::uint64_t seed_of(std::uint64_t seed, std::uint64_t which) {
  return Random(seed ^ which * 0x9e3779b97f4a7c15ull).next();
}

std::vector<Link> make_links(const FabricOptions& options, const LinkOptions& common,
                             const std::vector<std::pair<Rank, LinkOptions>>& exceptions,
                             std::uint64_t side) {
  std::vector<const LinkOptions*> chosen(options.ranks, &common);
  for (const auto& [rank, link] : exceptions) chosen[rank] = &link;
  std::vector<Link> links;
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    links.emplace_back(*chosen[rank], seed_of(options.seed, side << 32 | rank));
  }
  return links;
}

std::vector<Link> make_flows(const FabricOptions& options) {
  std::vector<Link> flows;
  if (options.flow == LinkOptions{}) return flows;
  const std::uint32_t count = options.ranks * options.ranks * TARPON_MAX_FLOWS;
  for (std::uint32_t i = 0; i < count; ++i) {
    flows.emplace_back(options.flow, seed_of(options.seed, 5ull << 32 | i));
  }
  return flows;
}

std::uint64_t pause_ns(const Background& traffic) {
  return static_cast<std::uint64_t>(
      std::llround(traffic.burst_bytes * 8e9 / traffic.bits_per_second));
}

}  // namespace

bool Fabric::Event::operator<(const Event& other) const {
  return time != other.time ? time > other.time : order > other.order;
}

Fabric::Fabric(const FabricOptions& options)
    : background_(options.background),
      ranks_(options.ranks),
      egress_(make_links(options, options.egress, options.egress_of, 1)),
      ingress_(make_links(options, options.ingress, options.ingress_of, 2)),
      flows_(make_flows(options)),
      core_(options.core, seed_of(options.seed, 3ull << 32)),
      has_core_(options.core != LinkOptions{}),
      has_trains_(options.trains),
      trace_(options.delay_trace, options.ranks),
      random_(seed_of(options.seed, 4ull << 32)) {
  tcp_.resize(background_.size());
  for (std::size_t i = 0; i < background_.size(); ++i) {
    if (background_[i].tcp) {
      send_tcp(Time{}, i);
      continue;
    }
    if (background_[i].bits_per_second <= 0 || background_[i].burst_bytes == 0) continue;
    const auto phase = static_cast<std::int64_t>(random_.below(pause_ns(background_[i]) + 1));
    push(others_, {.time = Time(Duration(phase)), .label = i, .hop = Hop::burst});
  }
}

void Fabric::push(Heap& heap, Event event) {
  event.order = order_++;
  heap.push_back(event);
  std::push_heap(heap.begin(), heap.end());
}

Fabric::Event Fabric::pop(Heap& heap) {
  std::pop_heap(heap.begin(), heap.end());
  const Event event = heap.back();
  heap.pop_back();
  return event;
}

void Fabric::send(Time now, Rank from, Rank to, std::uint32_t wire_bytes, std::uint64_t label,
                  std::uint8_t flow) {
  push(packets_, {.time = now,
                  .label = label,
                  .bytes = wire_bytes,
                  .from = from,
                  .to = to,
                  .flow = flow,
                  .hop = flows_.empty() ? Hop::egress : Hop::flow});
}

// The events of the copies follow one another, since they have the same time.
void Fabric::multicast(Time now, Rank from, std::span<const Copy> copies,
                       std::uint32_t wire_bytes) {
  for (const Copy& copy : copies) {
    push(packets_, {.time = now,
                    .label = copy.label,
                    .bytes = wire_bytes,
                    .from = from,
                    .to = copy.to,
                    .hop = Hop::egress,
                    .copied = &copy != copies.data()});
  }
}

Fabric::Hop Fabric::after(Hop hop) const {
  switch (hop) {
    case Hop::burst:
    case Hop::flow:
      return Hop::egress;
    case Hop::egress:
      return has_core_ ? Hop::core : Hop::ingress;
    case Hop::core:
      return Hop::ingress;
    case Hop::ingress:
    case Hop::arrived:
    case Hop::acknowledged:
    case Hop::missed:
      break;
  }
  return Hop::arrived;
}

std::span<const Fabric::Outcome> Fabric::advance(Time now) {
  outcomes_.clear();
  for (;;) {
    // The heap with the earlier event. The front of a heap is its largest event: the earliest.
    const bool other = packets_.empty() || (!others_.empty() && packets_.front() < others_.front());
    Heap& heap = other ? others_ : packets_;
    if (heap.empty() || heap.front().time > now) return outcomes_;
    step(heap);
  }
}

void Fabric::step(Heap& heap) {
  Event event = pop(heap);
  if (event.hop == Hop::burst) return start_burst(event);
  if (event.hop == Hop::acknowledged || event.hop == Hop::missed) return answer_tcp(event);
  const bool background = &heap == &others_;
  if (has_trains_ && event.hop == Hop::ingress && drop_train(heap, event)) return;
  Passage passage{LinkFate::delivered, event.time};
  if (event.hop != Hop::arrived) passage = cross(event);
  if (passage.fate == LinkFate::delivered && event.hop != Hop::arrived) {
    event.hop = after(event.hop);
    event.time = passage.time;
    return push(heap, event);
  }
  end(event, passage, background);
}

void Fabric::end(const Event& event, const Passage& passage, bool background) {
  count(passage.fate, background, event.bytes);
  if (!background) {
    outcomes_.push_back({event.time, passage.fate, event.label});
  } else {
    tell_tcp(event, passage.fate);
  }
}

/// Drops the train that `first`, taken from `heap`, begins, if the train finds no room. Its other
/// packets follow in `heap`. Returns whether it was dropped.
bool Fabric::drop_train(Heap& heap, const Event& first) {
  constexpr std::size_t kMost = 44;  // packets: 64 KiB
  const auto same = [&](const Event& other) {
    return other.time == first.time && other.hop == first.hop && other.from == first.from &&
           other.to == first.to && other.flow == first.flow;
  };
  if (same(last_) && followers_ > 0) {
    --followers_;
    return false;
  }
  train_.assign(1, first);
  std::uint32_t bytes = first.bytes;
  while (!heap.empty() && same(heap.front()) && train_.size() < kMost) {
    bytes += heap.front().bytes;
    train_.push_back(pop(heap));
  }
  const bool fits = ingress_[first.to].has_room(first.time, bytes);
  if (fits) {
    for (std::size_t i = 1; i < train_.size(); ++i) {
      heap.push_back(train_[i]);
      std::push_heap(heap.begin(), heap.end());
    }
    last_ = first;
    followers_ = train_.size() - 1;
    return false;
  }
  for (const Event& event : train_) {
    end(event, {LinkFate::queue, event.time}, &heap == &others_);
  }
  return true;
}

Passage Fabric::cross(Event& event) {
  switch (event.hop) {
    case Hop::flow: {
      const std::uint32_t pair = event.from * ranks_ + event.to;
      return flows_[pair * TARPON_MAX_FLOWS + event.flow].enter(event.time, event.bytes);
    }
    case Hop::egress:
      if (!event.copied) {
        latest_egress_ = egress_[event.from].enter(event.time, event.bytes);
        latest_egress_.time += trace_.at(event.time, event.from);
      }
      return latest_egress_;
    case Hop::core:
      return core_.enter(event.time, event.bytes);
    case Hop::ingress:
      return ingress_[event.to].enter(event.time, event.bytes);
    case Hop::burst:
    case Hop::arrived:
    case Hop::acknowledged:
    case Hop::missed:
      break;
  }
  return {LinkFate::delivered, event.time};
}

void Fabric::start_burst(const Event& event) {
  const Background& traffic = background_[event.label];
  for (std::uint32_t left = traffic.burst_bytes; left > 0;) {
    const std::uint32_t bytes = std::min(left, kBackgroundPacket);
    push(others_, {.time = event.time,
                   .label = event.label,
                   .bytes = bytes,
                   .from = traffic.from,
                   .to = traffic.to});
    left -= bytes;
  }
  const auto pause =
      static_cast<std::uint64_t>(std::llround(traffic.burst_bytes * 8e9 / traffic.bits_per_second));
  const std::uint64_t varied = pause / 2 + random_.below(pause + 1);
  const auto next = Duration(static_cast<std::int64_t>(std::max<std::uint64_t>(varied, 1)));
  push(others_, {.time = event.time + next, .label = event.label, .hop = Hop::burst});
}

void Fabric::send_tcp(Time now, std::size_t index) {
  TcpFlow& flow = tcp_[index];
  for (std::uint64_t left = flow.may_send(); left > 0; --left) {
    push(others_, {.time = now,
                   .label = flow.send(now) << kIndexBits | index,
                   .bytes = kBackgroundPacket,
                   .from = background_[index].from,
                   .to = background_[index].to});
  }
}

/// Sends news of the fate of a packet to its sender.
void Fabric::tell_tcp(const Event& event, LinkFate fate) {
  const std::size_t index = event.label & ((1 << kIndexBits) - 1);
  if (!background_[index].tcp) return;
  const bool arrived = fate == LinkFate::delivered;
  push(others_, {.time = event.time + (arrived ? kWayBack : tcp_[index].round_trip()),
                 .label = event.label,
                 .hop = arrived ? Hop::acknowledged : Hop::missed});
}

void Fabric::answer_tcp(const Event& event) {
  const std::size_t index = event.label & ((1 << kIndexBits) - 1);
  if (event.hop == Hop::acknowledged) {
    tcp_[index].acknowledged(event.time);
  } else {
    tcp_[index].lost(event.label >> kIndexBits);
  }
  send_tcp(event.time, index);
}

void Fabric::count(LinkFate fate, bool background, std::uint32_t bytes) {
  if (background) {
    if (fate == LinkFate::delivered) statistics_.background_bytes += bytes;
    return;
  }
  switch (fate) {
    case LinkFate::delivered:
      ++statistics_.delivered;
      break;
    case LinkFate::queue:
      ++statistics_.dropped_queue;
      break;
    case LinkFate::policer:
      ++statistics_.dropped_policer;
      break;
    case LinkFate::loss:
      ++statistics_.dropped_loss;
      break;
  }
}

}  // namespace tarpon
