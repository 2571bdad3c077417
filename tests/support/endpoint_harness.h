// Endpoints whose packets a test moves by hand, with explicit times.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "transport/endpoint.h"
#include "transport/integrity.h"

namespace tarpon::testing_support {

inline constexpr std::uint32_t kSlot = 64;  // bytes; small, so that messages have many slots
inline constexpr std::uint32_t kMaxPayload = 512;

/// A datagram on its way.
struct Packet {
  Rank from = 0;
  Rank to = 0;
  std::vector<std::byte> bytes;
  std::uint8_t flow = 0;

  tarpon_header header() const {
    tarpon_header result{};
    std::memcpy(&result, bytes.data(), std::min(bytes.size(), sizeof result));
    return result;
  }
  void set(const tarpon_header& header) { std::memcpy(bytes.data(), &header, sizeof header); }
  std::span<const std::byte> payload() const {
    return std::span(bytes).subspan(TARPON_HEADER_BYTES);
  }
  void set_payload(const void* data, std::size_t length) {
    bytes.resize(TARPON_HEADER_BYTES + length);
    if (length > 0) std::memcpy(bytes.data() + TARPON_HEADER_BYTES, data, length);
    tarpon_header changed = header();
    changed.length = static_cast<std::uint16_t>(length);
    set(changed);
  }
  /// For jobs with crc32c, after a change.
  void seal() {
    tarpon_header sealed = header();
    sealed.check = packet_check(sealed, payload());
    set(sealed);
  }
  std::vector<tarpon_range> ranges() const {
    std::vector<tarpon_range> result(payload().size() / sizeof(tarpon_range));
    if (!result.empty()) std::memcpy(result.data(), payload().data(), payload().size());
    return result;
  }
};

using Packets = std::vector<Packet>;

inline Packets of_type(const Packets& packets, std::uint8_t type) {
  Packets result;
  for (const Packet& packet : packets) {
    if (packet.header().type == type) result.push_back(packet);
  }
  return result;
}

/// The byte at `offset` of the message from `from` to `to` in `stage`.
inline std::byte pattern(Rank from, Rank to, std::uint8_t stage, std::uint64_t offset) {
  return static_cast<std::byte>(17 * from + 29 * to + 71 * stage + 7 * offset + offset / 251);
}

class PatternSource : public Source {
 public:
  PatternSource(Rank from, Rank to, std::uint8_t stage, std::uint64_t bytes) : from_(from) {
    for (std::uint64_t i = 0; i < bytes; ++i) data_.push_back(pattern(from, to, stage, i));
  }
  OutgoingRun lend(std::uint32_t first, std::uint32_t most) override {
    return {data_.data() + std::size_t{first} * kSlot, kSlot, most, 1ull << from_};
  }

 private:
  Rank from_;
  std::vector<std::byte> data_;
};

/// Records every delivery and checks its bytes against the pattern.
class PatternSink : public Sink {
 public:
  PatternSink(Rank to, std::uint8_t stage) : to_(to), stage_(stage) {}

  void deliver(const IncomingRun& run) override {
    EXPECT_EQ(run.contributors, 1ull << run.from);
    for (std::uint32_t i = 0; i < run.packets.size(); ++i) {
      take(run.from, run.first + i, run.payload(i));
    }
  }

  std::vector<std::pair<Rank, std::uint32_t>> order;
  std::map<std::pair<Rank, std::uint32_t>, int> times;
  std::map<Rank, std::uint64_t> bytes;

 private:
  void take(Rank from, std::uint32_t slot, std::span<const std::byte> payload) {
    order.emplace_back(from, slot);
    const int time = ++times[{from, slot}];
    EXPECT_EQ(time, 1) << "slot " << slot << " of rank " << from;
    for (std::size_t i = 0; i < payload.size(); ++i) {
      ASSERT_EQ(payload[i], pattern(from, to_, stage_, std::uint64_t{slot} * kSlot + i))
          << "byte " << i << " of slot " << slot << " of rank " << from;
    }
    bytes[from] += payload.size();
  }

  Rank to_;
  std::uint8_t stage_;
};

/// What one rank's operation needs to live: sources and sinks by stage.
struct Call {
  OperationSpec spec;
  std::array<Duration, TARPON_MAX_STAGES> bounds{};  // bounded: of each stage, one after another
  std::vector<std::unique_ptr<PatternSource>> sources;
  std::vector<std::unique_ptr<PatternSink>> sinks;
  Rank rank = 0;  // whose it is, once submitted
  OperationHandle handle;

  /// The clock has started at `at`.
  StageEnds ends(Time at) const {
    StageEnds ends;
    for (std::size_t i = 0; i < spec.stages.size(); ++i) ends.at[i] = at = after(at, bounds[i]);
    const std::size_t last = spec.stages.size() - 1;
    ends.lateness.grace = bounds[last];
    ends.lateness.notice = bounds[last] / 2;
    if (last > 0) ends.lateness.late_after = ends.at[last - 1];
    return ends;
  }
};

/// Every rank sends `bytes` to every other one in each of `stages` stages.
inline std::unique_ptr<Call> exchange(Rank rank, std::uint16_t world, std::uint64_t bytes,
                                      std::uint8_t stages = 1, std::uint32_t tag = 0) {
  auto call = std::make_unique<Call>();
  call->spec.tag = tag;
  call->spec.slot_bytes = kSlot;
  call->spec.signature[0] = 1;
  for (std::uint8_t i = 0; i < stages; ++i) {
    StageSpec stage;
    call->sinks.push_back(std::make_unique<PatternSink>(rank, i));
    for (std::uint16_t step = 1; step < world; ++step) {
      const auto next = static_cast<Rank>((rank + step) % world);
      const auto previous = static_cast<Rank>((rank + world - step) % world);
      call->sources.push_back(std::make_unique<PatternSource>(rank, previous, i, bytes));
      stage.sends.push_back({previous, call->sources.back().get(), bytes});
      stage.receives.push_back({next, call->sinks.back().get(), bytes});
    }
    call->spec.stages.push_back(std::move(stage));
  }
  return call;
}

/// As exchange(), but only rank 0 sends, to all.
inline std::unique_ptr<Call> from_zero(Rank rank, std::uint16_t world, std::uint64_t bytes) {
  auto call = exchange(rank, world, bytes);
  StageSpec& stage = call->spec.stages[0];
  if (rank != 0) stage.sends.clear();
  std::erase_if(stage.receives, [](const ReceiveSpec& receive) { return receive.peer != 0; });
  return call;
}

inline EndpointOptions small_options() {
  EndpointOptions options;
  options.job = 0xbeef;
  options.initial_credit = 4;
  options.detects_silence = false;  // tests let ranks wait for long
  return options;
}

inline PortCapabilities plain_port() {
  return {.name = "test", .max_payload = kMaxPayload, .receive_bytes = 64 * (kSlot + 64)};
}

/// Decides what becomes of a packet on its way: how many times it is delivered.
using Fate = std::function<int(const Packet&)>;

class Harness {
 public:
  explicit Harness(std::uint16_t world, EndpointOptions options = small_options(),
                   const PortCapabilities& port = plain_port())
      : max_payload_(port.max_payload), world_(world) {
    for (Rank rank = 0; rank < world; ++rank) {
      options.rank = rank;
      options.world_size = world;
      endpoints_.push_back(std::make_unique<Endpoint>(options, port));
    }
    events.resize(world);
    clocks.resize(world);
  }

  Endpoint& operator[](Rank rank) { return *endpoints_[rank]; }
  std::uint16_t world() const { return world_; }

  Call& submit(std::unique_ptr<Call> call, Rank rank) {
    calls_.push_back(std::move(call));
    Call& kept = *calls_.back();
    kept.rank = rank;
    for (const Duration bound : kept.bounds) kept.spec.bound += bound;
    kept.handle = (*this)[rank].submit(kept.spec, now);
    return kept;
  }

  /// All that is due at `rank`, `at_once` frames a poll. A packet for all ranks comes once for
  /// each.
  Packets poll(Rank rank, std::size_t at_once = 16) {
    Packets result;
    std::vector<std::array<std::byte, TARPON_HEADER_BYTES + kMaxPayload>> memory(at_once);
    for (;;) {
      std::vector<TxPacket> frames(at_once);
      for (std::size_t i = 0; i < at_once; ++i) {
        frames[i].header = memory[i].data();
        frames[i].room = memory[i].data() + TARPON_HEADER_BYTES;
      }
      const std::size_t used = (*this)[rank].poll_transmit(now, frames);
      if (used == 0) return result;
      for (std::size_t i = 0; i < used; ++i) {
        EXPECT_LE(frames[i].length, max_payload_);
        Packet packet{rank, frames[i].peer, {}, frames[i].flow};
        packet.bytes.resize(TARPON_HEADER_BYTES + frames[i].length);
        std::memcpy(packet.bytes.data(), frames[i].header, TARPON_HEADER_BYTES);
        if (frames[i].length > 0) {
          std::memcpy(packet.bytes.data() + TARPON_HEADER_BYTES, frames[i].payload,
                      frames[i].length);
        }
        if (packet.to != kAllRanks) {
          result.push_back(std::move(packet));
          continue;
        }
        for (packet.to = 0; packet.to < world_; ++packet.to) {
          if (packet.to != rank) result.push_back(packet);
        }
      }
    }
  }

  void give(const Packet& packet) { give_at_once(packet.to, {packet}); }
  /// Gives packets to `rank` in one batch.
  void give_at_once(Rank rank, const Packets& packets) {
    // Copies at odd addresses: receive buffers promise no alignment.
    std::vector<std::vector<std::byte>> memory;
    std::vector<RxPacket> batch;
    for (const Packet& packet : packets) {
      std::vector<std::byte>& unaligned = memory.emplace_back(packet.bytes.size() + 1);
      std::copy(packet.bytes.begin(), packet.bytes.end(), unaligned.begin() + 1);
      batch.push_back(
          {unaligned.data() + 1, static_cast<std::uint32_t>(packet.bytes.size()), packet.from});
    }
    (*this)[rank].on_receive(now, batch);
    collect(rank);
  }
  void give(const Packets& packets) {
    for (const Packet& packet : packets) give(packet);
  }

  void tick(Rank rank) {
    collect(rank);
    (*this)[rank].on_timer(now);
    collect(rank);
  }

  /// Moves packets without time passing until nothing is due any more.
  void settle(const Fate& fate = [](const Packet&) { return 1; }) {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank rank = 0; rank < world_; ++rank) {
        for (const Packet& packet : poll(rank)) {
          moved = true;
          for (int i = fate(packet); i > 0; --i) give(packet);
        }
      }
    }
  }

  /// Runs packets and timers up to and including `end`.
  void run_until(
      Time end, const Fate& fate = [](const Packet&) { return 1; }) {
    for (;;) {
      for (Rank rank = 0; rank < world_; ++rank) tick(rank);
      settle(fate);
      Time next = kNever;
      for (const auto& endpoint : endpoints_) next = std::min(next, endpoint->next_deadline());
      if (next > end) break;
      now = std::max(next, now + 1us);
    }
    now = std::max(now, end);
  }

  /// Events of `rank` so far, oldest first; not those of clocks, which are answered.
  std::vector<std::vector<Event>> events;
  /// When the clocks of its operations started.
  std::vector<std::vector<Time>> clocks;

  std::vector<Event> events_of(Rank rank, Event::Kind kind) {
    collect(rank);
    std::vector<Event> result;
    for (const Event& event : events[rank]) {
      if (event.kind == kind) result.push_back(event);
    }
    return result;
  }
  std::size_t count(Rank rank, Event::Kind kind) { return events_of(rank, kind).size(); }

  std::uint64_t dropped(Rank rank, DropReason reason) { return (*this)[rank].counters()[reason]; }

  Time now{1s};

 private:
  void collect(Rank rank) {
    Event event;
    while ((*this)[rank].poll_event(event)) {
      if (event.kind == Event::Kind::clock) {
        start_clock(rank, event);
      } else {
        events[rank].push_back(event);
      }
    }
  }

  void start_clock(Rank rank, const Event& event) {
    clocks[rank].push_back(event.at);
    for (const auto& call : calls_) {
      if (call->rank != rank || !(call->handle == event.operation)) continue;
      (*this)[rank].set_ends(call->handle, call->ends(event.at), now);
    }
  }

  std::uint32_t max_payload_;
  std::uint16_t world_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<Call>> calls_;
};

inline std::uint64_t total_dropped(const EndpointCounters& counters) {
  std::uint64_t total = 0;
  for (const std::uint64_t count : counters.dropped) total += count;
  return total;
}

inline constexpr std::uint64_t kFew = 3 * kSlot;    // within the initial credit of 4 slots
inline constexpr std::uint64_t kMany = 20 * kSlot;  // beyond it

inline std::vector<std::uint32_t> slots_of(const Packets& packets) {
  std::vector<std::uint32_t> slots;
  for (const Packet& packet : of_type(packets, TARPON_DATA)) slots.push_back(packet.header().slot);
  return slots;
}

/// Both ranks of a pair have the whole message.
inline void expect_exchanged(Harness& net, const Call& a, const Call& b, std::uint64_t bytes) {
  EXPECT_EQ(a.sinks[0]->bytes.at(1), bytes);
  EXPECT_EQ(b.sinks[0]->bytes.at(0), bytes);
  for (Rank rank = 0; rank < 2; ++rank) {
    const auto closed = net.events_of(rank, Event::Kind::stage_closed);
    ASSERT_EQ(closed.size(), 1u);
    EXPECT_EQ(closed[0].closing, Closing::complete);
  }
}

}  // namespace tarpon::testing_support
