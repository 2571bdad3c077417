// One operation of the endpoint under test, with sources and sinks that check their contracts.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "transport/endpoint.h"

namespace tarpon::fuzz {

inline constexpr std::uint32_t kSlot = 64;  // bytes; small, so that messages have many slots
inline constexpr Rank kOwn = 1;
inline constexpr std::uint16_t kRanks = 4;

inline constexpr std::uint64_t kMaxSlots = 40;  // of a message

/// What rank kOwn sends in `stage`, from the message's first byte on.
inline std::span<const std::byte> sent_bytes(std::uint8_t stage) {
  static const auto patterns = [] {
    std::array<std::array<std::byte, kMaxSlots * kSlot>, 2> result;
    for (std::uint32_t i = 0; i < 2 * kMaxSlots * kSlot; ++i) {
      const std::uint32_t offset = i / 2;
      result[i % 2][offset] = static_cast<std::byte>(71 * (i % 2) + 7 * offset + offset / 251);
    }
    return result;
  }();
  return patterns[stage];
}

inline std::uint32_t slots_in(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + kSlot - 1) / kSlot);
}

inline std::uint32_t slot_length(std::uint64_t bytes, std::uint32_t slot) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(kSlot, bytes - std::uint64_t{slot} * kSlot));
}

/// Lends its bytes, at most `longest` slots at once. After end() its memory is gone.
class CheckedSource : public Source {
 public:
  CheckedSource(std::uint8_t stage, std::uint64_t bytes, std::uint32_t longest)
      : longest_(longest),
        data_(sent_bytes(stage).begin(),
              sent_bytes(stage).begin() + static_cast<std::ptrdiff_t>(bytes)) {}
  OutgoingRun lend(std::uint32_t first, std::uint32_t most) override {
    const std::uint32_t slots = slots_in(data_.size());
    require(first < slots && most <= slots - first,
            "a source is asked for slots of an open operation");
    return {data_.data() + std::size_t{first} * kSlot, kSlot, std::min(most, longest_),
            1ull << kOwn};
  }
  void end() { std::vector<std::byte>().swap(data_); }

 private:
  std::uint32_t longest_;
  std::vector<std::byte> data_;
};

/// Holds the endpoint to "once per slot and sender, while the stage is open".
class CheckedSink : public Sink {
 public:
  CheckedSink(std::uint64_t bytes, std::uint16_t peers) : bytes_(bytes), peers_(peers) {
    for (auto& one : seen_) one.resize(slots_in(bytes));
  }
  void deliver(const IncomingRun& run) override {
    require(!run.packets.empty(), "a sink gets packets");
    for (std::uint32_t i = 0; i < run.packets.size(); ++i) {
      const std::uint32_t slot = run.first + i;
      const std::span<const std::byte> payload = run.payload(i);
      mark(run.from, slot);
      require(payload.size() == slot_length(bytes_, slot), "a payload has its slot's length");
      std::uint32_t sum = 0;  // reads every byte: a sanitizer sees one that is not there
      for (const std::byte one : payload) sum += static_cast<std::uint32_t>(one);
      checksum_ += sum;
      ++delivered_[run.from];
    }
  }
  void lost(Rank from, std::uint32_t slot) override { mark(from, slot); }

  std::uint32_t delivered(Rank from) const { return delivered_[from]; }
  /// Nothing may be delivered any more.
  void end() { ended_ = true; }

 private:
  void mark(Rank from, std::uint32_t slot) {
    require(!ended_, "a sink is not called after its stage has closed");
    require(from < kRanks && (peers_ >> from & 1) != 0, "a sink hears of its own senders");
    require(slot < seen_[from].size(), "a slot lies within its message");
    require(!seen_[from][slot], "a slot is delivered, or lost, once");
    seen_[from][slot] = true;
  }

  std::uint64_t bytes_;
  std::uint16_t peers_;  // bit r: rank r sends to it
  std::array<std::vector<bool>, kRanks> seen_;
  std::array<std::uint32_t, kRanks> delivered_{};
  std::uint32_t checksum_ = 0;
  bool ended_ = false;
};

/// An operation and what it lends. Lives on after its end, to see that nothing calls it then.
struct Call {
  OperationSpec spec;
  std::array<Duration, TARPON_MAX_STAGES> bounds{};
  std::vector<std::unique_ptr<CheckedSource>> sources;
  std::vector<std::unique_ptr<CheckedSink>> sinks;  // by stage
  std::uint64_t bytes = 0;                          // of every message
  std::uint32_t number = 0;
  OperationHandle handle;
  std::uint32_t closed_stages = 0;  // bit i: stage i

  void end() {
    for (auto& source : sources) source->end();
    for (auto& sink : sinks) sink->end();
  }
};

/// Draws an operation's shape from `input`. Every rank sends to every other one.
inline std::unique_ptr<Call> draw_call(Input& input) {
  constexpr std::uint64_t kSlots[] = {0, 1, 3, 10, kMaxSlots};
  auto call = std::make_unique<Call>();
  const std::uint32_t shape = input.number<std::uint16_t>();
  const auto bit = [shape](int at) { return (shape >> at & 1) != 0; };
  OperationSpec& spec = call->spec;
  spec.tag = bit(0) ? 7 : 0;
  spec.bounded = bit(1);
  spec.slot_bytes = kSlot;
  spec.signature[0] = bit(2) ? 2 : 1;
  spec.epoch.number = bit(3) ? 1 : 0;
  spec.marked = spec.bounded && bit(4);
  spec.asks_if_late = !bit(5);
  spec.awaits_confirmations = !spec.bounded && bit(15);
  const std::uint64_t slots = kSlots[input.below(5)];
  call->bytes = slots == 0 ? 0 : slots * kSlot - (bit(6) ? 40 : 0);
  const std::uint8_t stages = bit(7) ? 1 : 2;
  const std::uint16_t others = ((1u << kRanks) - 1) & ~(1u << kOwn);
  for (std::uint8_t i = 0; i < stages; ++i) {
    StageSpec stage;
    stage.repair = !bit(9);
    stage.acknowledge = bit(10) && i + 1 == stages;
    stage.ready = bit(11) ? static_cast<std::uint32_t>(slots / 2) : kAllSlots;
    call->bounds[i] = bit(12) ? 1ms : 20ms;
    spec.bound += call->bounds[i];
    spec.early[i] = bit(13) ? Duration(200us) : Duration::zero();
    call->sinks.push_back(std::make_unique<CheckedSink>(call->bytes, others));
    for (std::uint16_t step = 1; step < kRanks; ++step) {
      const auto peer = static_cast<Rank>((kOwn + step) % kRanks);
      call->sources.push_back(
          std::make_unique<CheckedSource>(i, call->bytes, bit(14) ? 1 : kAllSlots));
      stage.sends.push_back({peer, call->sources.back().get(), call->bytes});
      stage.receives.push_back({peer, call->sinks.back().get(), call->bytes});
    }
    spec.stages.push_back(std::move(stage));
  }
  return call;
}

}  // namespace tarpon::fuzz
