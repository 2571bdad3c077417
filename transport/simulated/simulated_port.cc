#include "transport/simulated/simulated_port.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "transport/random.h"

namespace tarpon {
namespace {

void mix(std::uint64_t& hash, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 1099511628211ull;
}

}  // namespace

struct SimulatedNetwork::State {
  /// Later arrival first, so that std::push_heap keeps the earliest at the front. Ties go by
  /// sending order: replay does not depend on the heap's layout.
  struct InFlight {
    Time arrival{};
    Duration delay{};   // after the modelled links
    Time not_before{};  // as its route says
    std::uint64_t order = 0;
    Rank source = 0, to = 0;
    std::vector<std::byte> bytes = {};

    bool operator<(const InFlight& other) const {
      return arrival != other.arrival ? arrival > other.arrival : order > other.order;
    }
  };

  explicit State(const SimulatedNetworkOptions& given)
      : options(given), random(given.seed), queues(given.ranks), overruns(given.ranks) {
    if (!options.links) return;
    options.links->ranks = given.ranks;
    options.links->seed = given.seed;
    fabric.emplace(*options.links);
  }

  void send(Rank from, Rank to, std::uint8_t flow, std::vector<std::byte> bytes,
            const SimulatedTraffic::Route& route);
  void multicast(Rank from, std::span<const std::byte> bytes);
  std::optional<InFlight> depart(Rank from, Rank to, std::vector<std::byte> bytes,
                                 const SimulatedTraffic::Route& route);
  std::size_t cross(InFlight flight);
  void advance_to(Time to);
  void enqueue(InFlight flight);
  void drop(Time at, InFlight flight, std::string_view fate);
  void tell(Time at, const InFlight& flight, std::string_view fate);
  std::vector<std::byte> buffer();

  SimulatedNetworkOptions options;
  Random random;
  std::optional<Fabric> fabric;
  bool healed = false;
  SimulatedTraffic* traffic = nullptr;
  Time now{};
  std::vector<std::vector<InFlight>> queues;  // heaps, by receiver
  std::vector<InFlight> crossing;  // on their way over the fabric, by label; no arrival yet
  std::vector<std::size_t> free_labels;
  std::vector<Fabric::Copy> copies;  // scratch
  std::vector<std::uint64_t> overruns;
  std::vector<std::vector<std::byte>> spare;  // buffers of delivered packets
  std::uint64_t order = 0;
  std::uint64_t hash = 14695981039346656037ull;
};

std::vector<std::byte> SimulatedNetwork::State::buffer() {
  if (spare.empty()) return {};
  std::vector<std::byte> bytes = std::move(spare.back());
  spare.pop_back();
  return bytes;
}

void SimulatedNetwork::State::tell(Time at, const InFlight& flight, std::string_view fate) {
  if (traffic != nullptr) traffic->ended(at, flight.source, flight.to, flight.bytes, fate);
}

void SimulatedNetwork::State::drop(Time at, InFlight flight, std::string_view fate) {
  tell(at, flight, fate);
  spare.push_back(std::move(flight.bytes));
}

void SimulatedNetwork::State::enqueue(InFlight flight) {
  auto& queue = queues[flight.to];
  if (queue.size() >= options.queue_packets) {
    ++overruns[flight.to];
    return drop(now, std::move(flight), "overrun");
  }
  queue.push_back(std::move(flight));
  std::push_heap(queue.begin(), queue.end());
}

/// Begins the way of a packet. Returns it if it goes over modelled links.
std::optional<SimulatedNetwork::State::InFlight> SimulatedNetwork::State::depart(
    Rank from, Rank to, std::vector<std::byte> bytes, const SimulatedTraffic::Route& route) {
  const auto jitter = static_cast<std::uint64_t>(options.jitter.count());
  const Duration delay =
      options.delay + Duration(static_cast<std::int64_t>(random.below(jitter + 1)));
  InFlight flight{now, delay, route.not_before, order++, from, to, std::move(bytes)};
  if (!route.lost.empty()) {
    drop(now, std::move(flight), route.lost);
    return std::nullopt;
  }
  if (fabric && !healed) return flight;
  flight.arrival = std::max(now + delay, route.not_before);
  enqueue(std::move(flight));
  return std::nullopt;
}

/// Keeps a packet while it crosses the fabric; returns its label.
std::size_t SimulatedNetwork::State::cross(InFlight flight) {
  if (free_labels.empty()) {
    free_labels.push_back(crossing.size());
    crossing.emplace_back();
  }
  const std::size_t label = free_labels.back();
  free_labels.pop_back();
  crossing[label] = std::move(flight);
  return label;
}

void SimulatedNetwork::State::send(Rank from, Rank to, std::uint8_t flow,
                                   std::vector<std::byte> bytes,
                                   const SimulatedTraffic::Route& route) {
  const auto wire_bytes = static_cast<std::uint32_t>(bytes.size()) + kWireOverhead;
  if (auto flight = depart(from, to, std::move(bytes), route)) {
    fabric->send(now, from, to, wire_bytes, cross(std::move(*flight)), flow);
  }
}

void SimulatedNetwork::State::multicast(Rank from, std::span<const std::byte> bytes) {
  copies.clear();
  for (Rank to = 0; to < options.ranks; ++to) {
    if (to == from) continue;
    std::vector<std::byte> copy = buffer();
    copy.assign(bytes.begin(), bytes.end());
    SimulatedTraffic::Route route;
    if (traffic != nullptr) route = traffic->route(now, from, to, copy);
    if (auto flight = depart(from, to, std::move(copy), route)) {
      copies.push_back({.to = to, .label = cross(std::move(*flight))});
    }
  }
  if (copies.empty()) return;
  fabric->multicast(now, from, copies, static_cast<std::uint32_t>(bytes.size()) + kWireOverhead);
}

void SimulatedNetwork::State::advance_to(Time to) {
  now = std::max(now, to);
  if (!fabric) return;
  for (const Fabric::Outcome& outcome : fabric->advance(now)) {
    free_labels.push_back(outcome.label);
    InFlight flight = std::move(crossing[outcome.label]);
    flight.arrival = std::max(outcome.time + flight.delay, flight.not_before);
    switch (outcome.fate) {
      case LinkFate::delivered:
        enqueue(std::move(flight));
        break;
      case LinkFate::queue:
        drop(outcome.time, std::move(flight), "queue");
        break;
      case LinkFate::policer:
        drop(outcome.time, std::move(flight), "policer");
        break;
      case LinkFate::loss:
        drop(outcome.time, std::move(flight), "loss");
        break;
    }
  }
}

class SimulatedPort : public Port {
  using InFlight = SimulatedNetwork::State::InFlight;

 public:
  SimulatedPort(SimulatedNetwork::State& network, Rank rank) : network_(network), rank_(rank) {
    const SimulatedNetworkOptions& options = network.options;
    capabilities_ = {.name = "simulated",
                     .max_payload = options.max_payload,
                     .gathers = options.gathers,
                     .checksums = false,
                     .burst = options.burst,
                     .flows = options.flows,
                     .multicasts = options.multicasts,
                     .receive_bytes = options.receive_bytes};
    const std::size_t stride = TARPON_HEADER_BYTES + options.max_payload;
    memory_.resize(options.frames * stride);
    for (std::size_t i = 0; i < options.frames; ++i) {
      TxPacket frame;
      frame.header = memory_.data() + i * stride;
      frame.room = frame.header + TARPON_HEADER_BYTES;
      frames_.push_back(frame);
    }
  }

  const PortCapabilities& capabilities() const override { return capabilities_; }

  std::span<TxPacket> transmit_frames(std::size_t at_most) override {
    return std::span(frames_).first(std::min(at_most, frames_.size()));
  }

  void transmit(std::span<TxPacket> packets) override {
    for (const TxPacket& packet : packets) send(packet);
    if (!packets.empty()) ++statistics_.tx_units;
  }

  std::size_t unsent() const override { return 0; }
  bool holds(Lender) const override { return false; }  // transmit() copies
  void drop_unsent(Lender) override {}

  std::span<const RxPacket> receive(Time now) override {
    for (InFlight& packet : received_) network_.spare.push_back(std::move(packet.bytes));
    received_.clear();
    batch_.clear();
    auto& queue = network_.queues[rank_];
    std::uint64_t waiting = 0;
    while (!queue.empty() && queue.front().arrival <= now) {
      std::pop_heap(queue.begin(), queue.end());
      InFlight packet = std::move(queue.back());
      queue.pop_back();
      // No packet was taken since the last call: packets that came last found the buffer full.
      if (waiting + packet.bytes.size() > capabilities_.receive_bytes) {
        ++network_.overruns[rank_];
        const Time arrival = packet.arrival;
        network_.drop(arrival, std::move(packet), "overrun");
        continue;
      }
      waiting += packet.bytes.size();
      network_.tell(now, packet, "delivered");
      received_.push_back(std::move(packet));
    }
    for (const InFlight& packet : received_) {
      const auto length = static_cast<std::uint32_t>(packet.bytes.size());
      batch_.push_back({packet.bytes.data(), length, packet.source});
      ++statistics_.rx_packets;
      statistics_.rx_bytes += length;
    }
    if (!batch_.empty()) ++statistics_.rx_units;
    return batch_;
  }

  void wait(Time, Time) override {}
  void wake() override {}

  PortStatistics statistics() const override {
    PortStatistics result = statistics_;
    result.rx_overruns = network_.overruns[rank_];
    return result;
  }

 private:
  void send(const TxPacket& packet) {
    const bool known = packet.peer < network_.options.ranks || packet.peer == kAllRanks;
    if (!known || packet.length + packet.tail > capabilities_.max_payload) {
      ++statistics_.tx_dropped;
      return;
    }
    std::vector<std::byte> bytes = network_.buffer();
    bytes.resize(TARPON_HEADER_BYTES + packet.length + packet.tail);
    std::memcpy(bytes.data(), packet.header, TARPON_HEADER_BYTES);
    if (packet.length > 0) {
      std::memcpy(bytes.data() + TARPON_HEADER_BYTES, packet.payload, packet.length);
    }
    std::copy_n(packet.room + capabilities_.max_payload - packet.tail, packet.tail,
                bytes.end() - static_cast<std::ptrdiff_t>(packet.tail));
    ++statistics_.tx_packets;
    statistics_.tx_bytes += bytes.size();
    const std::int64_t at = network_.now.time_since_epoch().count();
    mix(network_.hash, &at, sizeof at);
    mix(network_.hash, &rank_, sizeof rank_);
    mix(network_.hash, &packet.peer, sizeof packet.peer);
    mix(network_.hash, bytes.data(), bytes.size());
    if (packet.peer == kAllRanks) {
      network_.multicast(rank_, bytes);
      network_.spare.push_back(std::move(bytes));
      return;
    }
    SimulatedTraffic::Route route;
    if (network_.traffic != nullptr) {
      route = network_.traffic->route(network_.now, rank_, packet.peer, bytes);
    }
    network_.send(rank_, packet.peer, packet.flow, std::move(bytes), route);
  }

  SimulatedNetwork::State& network_;
  Rank rank_;
  PortCapabilities capabilities_;
  std::vector<std::byte> memory_;
  std::vector<TxPacket> frames_;
  std::vector<InFlight> received_;
  std::vector<RxPacket> batch_;
  PortStatistics statistics_;
};

SimulatedNetwork::SimulatedNetwork(const SimulatedNetworkOptions& options)
    : state_(std::make_unique<State>(options)) {}

SimulatedNetwork::~SimulatedNetwork() = default;

std::unique_ptr<Port> SimulatedNetwork::make_port(Rank rank) {
  return std::make_unique<SimulatedPort>(*state_, rank);
}

void SimulatedNetwork::advance_to(Time now) {
  state_->advance_to(now);
}

Time SimulatedNetwork::now() const {
  return state_->now;
}

Time SimulatedNetwork::next_arrival() const {
  Time next = next_crossing();
  for (const auto& queue : state_->queues) {
    if (!queue.empty()) next = std::min(next, queue.front().arrival);
  }
  return next;
}

Time SimulatedNetwork::next_crossing() const {
  return state_->fabric ? state_->fabric->next_event() : kNever;
}

Time SimulatedNetwork::next_arrival(Rank rank) const {
  const auto& queue = state_->queues[rank];
  return queue.empty() ? kNever : queue.front().arrival;
}

void SimulatedNetwork::heal() {
  state_->healed = true;
  // Packets that a jam holds back come within a delay, in their order.
  const Time soon = state_->now + state_->options.delay;
  for (auto& queue : state_->queues) {
    for (auto& flight : queue) flight.arrival = std::min(flight.arrival, soon);
    std::make_heap(queue.begin(), queue.end());
  }
  for (State::InFlight& flight : state_->crossing)
    flight.not_before = std::min(flight.not_before, soon);
}

void SimulatedNetwork::watch(SimulatedTraffic* traffic) {
  state_->traffic = traffic;
}

void SimulatedNetwork::inject(Rank from, Rank to, std::span<const std::byte> packet) {
  std::vector<std::byte> bytes = state_->buffer();
  bytes.assign(packet.begin(), packet.end());
  state_->send(from, to, 0, std::move(bytes), {});
}

std::uint64_t SimulatedNetwork::trace_hash() const {
  return state_->hash;
}

}  // namespace tarpon
