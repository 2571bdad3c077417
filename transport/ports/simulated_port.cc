#include "transport/ports/simulated_port.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tarpon {
namespace {

/// Later arrival first, so that std::push_heap keeps the earliest at the front. Ties go by sending
/// order: replay does not depend on the heap's layout.
struct InFlight {
  Time arrival;
  std::uint64_t order = 0;
  Rank source = 0;
  std::vector<std::byte> bytes;

  bool operator<(const InFlight& other) const {
    return std::pair(arrival, order) > std::pair(other.arrival, other.order);
  }
};

void mix(std::uint64_t& hash, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 1099511628211ull;
}

}  // namespace

struct SimulatedNetwork::State {
  explicit State(const SimulatedNetworkOptions& given)
      : options(given), random(given.seed), queues(given.ranks), overruns(given.ranks) {}

  SimulatedNetworkOptions options;
  Random random;
  Time now{};
  std::vector<std::vector<InFlight>> queues;  // heaps, by receiver
  std::vector<std::uint64_t> overruns;
  std::vector<std::vector<std::byte>> spare;  // buffers of delivered packets
  std::uint64_t order = 0;
  std::uint64_t hash = 14695981039346656037ull;
};

class SimulatedPort : public Port {
 public:
  SimulatedPort(SimulatedNetwork::State& network, Rank rank) : network_(network), rank_(rank) {
    const SimulatedNetworkOptions& options = network.options;
    capabilities_ = {.name = "simulated",
                     .max_payload = options.max_payload,
                     .gathers = options.gathers,
                     .checksums = false,
                     .burst = options.burst,
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
  void drop_unsent() override {}

  std::span<const RxPacket> receive(Time now) override {
    for (InFlight& packet : received_) network_.spare.push_back(std::move(packet.bytes));
    received_.clear();
    batch_.clear();
    auto& queue = network_.queues[rank_];
    while (!queue.empty() && queue.front().arrival <= now) {
      std::pop_heap(queue.begin(), queue.end());
      received_.push_back(std::move(queue.back()));
      queue.pop_back();
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
    InFlight flight;
    if (!network_.spare.empty()) {
      flight.bytes = std::move(network_.spare.back());
      network_.spare.pop_back();
    }
    flight.bytes.resize(TARPON_HEADER_BYTES + packet.length);
    std::memcpy(flight.bytes.data(), packet.header, TARPON_HEADER_BYTES);
    if (packet.length > 0) {
      std::memcpy(flight.bytes.data() + TARPON_HEADER_BYTES, packet.payload, packet.length);
    }
    const auto jitter = static_cast<std::uint64_t>(network_.options.jitter.count());
    flight.arrival = network_.now + network_.options.delay +
                     Duration(static_cast<std::int64_t>(network_.random.below(jitter + 1)));
    flight.order = network_.order++;
    flight.source = rank_;
    ++statistics_.tx_packets;
    statistics_.tx_bytes += flight.bytes.size();
    const std::int64_t at = network_.now.time_since_epoch().count();
    mix(network_.hash, &at, sizeof at);
    mix(network_.hash, &rank_, sizeof rank_);
    mix(network_.hash, &packet.peer, sizeof packet.peer);
    mix(network_.hash, flight.bytes.data(), flight.bytes.size());
    auto& queue = network_.queues[packet.peer];
    if (queue.size() >= network_.options.queue_packets) {
      ++network_.overruns[packet.peer];
      return;
    }
    queue.push_back(std::move(flight));
    std::push_heap(queue.begin(), queue.end());
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
  state_->now = std::max(state_->now, now);
}

Time SimulatedNetwork::now() const {
  return state_->now;
}

Time SimulatedNetwork::next_arrival() const {
  Time next = kNever;
  for (const auto& queue : state_->queues) {
    if (!queue.empty()) next = std::min(next, queue.front().arrival);
  }
  return next;
}

std::uint64_t SimulatedNetwork::trace_hash() const {
  return state_->hash;
}

}  // namespace tarpon
