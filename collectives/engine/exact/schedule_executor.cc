#include "collectives/engine/exact/schedule_executor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "transport/rank_mask.h"

namespace tarpon {

class ScheduleExecutor::Outgoing : public Source {
 public:
  Outgoing(const ScheduleExecutor& executor, std::uint8_t stage, const Schedule::Message& message)
      : executor_(executor), stage_(stage), message_(message) {}

  OutgoingRun lend(std::uint32_t first, std::uint32_t most) override {
    const std::uint32_t number = executor_.piece_at(message_, first);
    const SlotRun slots = executor_.slots_[number];
    const std::uint64_t stride = executor_.shape_.chunks.slot_bytes;
    return {executor_.sources_[number] + (first - slots.first) * stride, stride,
            std::min(most, slots.end() - first),
            executor_.chunks_.contributors(executor_.schedule_.pieces[number])};
  }

  /// Advances ready(). Returns whether more slots may be sent than before.
  bool advance() {
    const std::uint32_t before = ready_;
    for (; next_ < message_.piece_count; ++next_) {
      const std::uint32_t number = message_.first_piece + next_;
      const Schedule::Piece& piece = executor_.schedule_.pieces[number];
      const SlotRun slots = executor_.slots_[number];
      if (piece.version == 0) ready_ = slots.first + executor_.chunks_.provided_slots(piece);
      while (piece.version > 0 && ready_ < slots.end() &&
             executor_.chunks_.holds(piece, ready_ - slots.first)) {
        ++ready_;
      }
      if (ready_ < slots.end()) break;
    }
    return ready_ > before;
  }

  const Schedule::Message& message() const { return message_; }
  std::uint8_t stage() const { return stage_; }
  std::uint32_t ready() const { return ready_; }

 private:
  const ScheduleExecutor& executor_;
  std::uint8_t stage_;
  Schedule::Message message_;
  std::uint32_t ready_ = 0;
  std::uint32_t next_ = 0;  // piece of the message that ready_ lies in
};

class ScheduleExecutor::Incoming : public Sink {
 public:
  Incoming(ScheduleExecutor& executor, std::uint8_t stage, const Schedule::Message& message)
      : executor_(executor), stage_(stage), message_(message) {}

  void deliver(const IncomingRun& run) override {
    for (IncomingRun rest = run; !rest.packets.empty();) {
      const std::uint32_t number = executor_.piece_at(message_, rest.first);
      const SlotRun slots = executor_.slots_[number];
      const std::size_t count =
          std::min<std::size_t>(rest.packets.size(), slots.end() - rest.first);
      IncomingRun of_piece = rest;
      of_piece.first -= slots.first;
      of_piece.packets = rest.packets.first(count);
      executor_.chunks_.deliver(number, of_piece);
      rest.first += static_cast<std::uint32_t>(count);
      rest.packets = rest.packets.subspan(count);
    }
  }

  const Schedule::Message& message() const { return message_; }
  std::uint8_t stage() const { return stage_; }

 private:
  ScheduleExecutor& executor_;
  std::uint8_t stage_;
  Schedule::Message message_;
};

ScheduleExecutor::ScheduleExecutor(Schedule schedule, const Shape& shape)
    : schedule_(std::move(schedule)),
      shape_(shape),
      chunks_(schedule_, shape.chunks),
      slots_(schedule_.pieces.size()),
      sources_(schedule_.pieces.size()) {
  std::size_t sends = 0, receives = 0;
  for (const Schedule::Stage& stage : schedule_.stages) {
    lay_out(stage.sends);
    lay_out(stage.receives);
    sends += stage.sends.size();
    receives += stage.receives.size();
  }
  outgoing_.reserve(sends);
  incoming_.reserve(receives);
  for (std::size_t i = 0; i < schedule_.stages.size(); ++i) {
    const auto stage = static_cast<std::uint8_t>(i);
    for (const Schedule::Message& message : schedule_.stages[i].sends) {
      const std::uint32_t end = message.first_piece + message.piece_count;
      for (std::uint32_t number = message.first_piece; number < end; ++number) {
        sources_[number] = chunks_.source_of(schedule_.pieces[number]);
        bytes_sent_ += chunks_.bytes_of(schedule_.pieces[number]);
      }
      outgoing_.emplace_back(*this, stage, message).advance();
    }
    for (const Schedule::Message& message : schedule_.stages[i].receives) {
      incoming_.emplace_back(*this, stage, message);
    }
  }
  choose_kept_stage();
}

ScheduleExecutor::~ScheduleExecutor() = default;

/// Numbers the slots of messages. Each piece begins with a slot of its own.
void ScheduleExecutor::lay_out(const std::vector<Schedule::Message>& messages) {
  for (const Schedule::Message& message : messages) {
    SlotRun slots;
    const std::uint32_t end = message.first_piece + message.piece_count;
    for (std::uint32_t number = message.first_piece; number < end; ++number) {
      const std::uint64_t bytes = chunks_.bytes_of(schedule_.pieces[number]);
      slots = {slots.end(), tarpon::slots(bytes, shape_.chunks.slot_bytes)};
      slots_[number] = slots;
    }
  }
}

/// The number of the piece of a message that `slot` belongs to.
std::uint32_t ScheduleExecutor::piece_at(const Schedule::Message& message,
                                         std::uint32_t slot) const {
  if (message.piece_count == 1) return message.first_piece;
  const auto first = slots_.begin() + message.first_piece;
  const auto after =
      std::upper_bound(first, first + message.piece_count, slot,
                       [](std::uint32_t number, const SlotRun& run) { return number < run.first; });
  return static_cast<std::uint32_t>(after - slots_.begin()) - 1;
}

/// Chooses a stage in which each rank sends its piece to all others. So each rank sees the pieces
/// of all ranks, and all ranks choose alike.
void ScheduleExecutor::choose_kept_stage() {
  for (std::size_t i = 0; i < schedule_.stages.size(); ++i) {
    const Schedule::Stage& stage = schedule_.stages[i];
    if (!stage.alike) continue;
    const auto small = [this](const Schedule::Message& message) {
      return chunks_.bytes_of(schedule_.pieces[message.first_piece]) <= shape_.confirm_above;
    };
    kept_stage_ = static_cast<std::uint8_t>(i);
    confirms_kept_ = !std::all_of(stage.sends.begin(), stage.sends.end(), small) ||
                     !std::all_of(stage.receives.begin(), stage.receives.end(), small);
  }
}

std::uint64_t ScheduleExecutor::kept_receivers() const {
  std::uint64_t ranks = 0;
  for (const Schedule::Message& message : schedule_.stages[kept_stage_].sends) {
    ranks |= bit(message.peer);
  }
  return ranks;
}

std::vector<StageSpec> ScheduleExecutor::stages() {
  std::vector<StageSpec> stages(schedule_.stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    stages[i].acknowledge = schedule_.stages[i].confirmed && (i != kept_stage_ || confirms_kept_);
    stages[i].alike = schedule_.stages[i].alike;
    stages[i].sends.reserve(schedule_.stages[i].sends.size());
    const int more = i == 0 ? std::popcount(shape_.others) : 0;
    stages[i].receives.reserve(schedule_.stages[i].receives.size() +
                               static_cast<std::size_t>(more));
  }
  const auto measure = [this](auto& to, const Schedule::Message& message) {
    for (const Schedule::Piece& piece : schedule_.pieces_of(message)) {
      to.bytes += chunks_.bytes_of(piece);
      if (message.piece_count > 1) to.ranges.push_back(chunks_.bytes_of(piece));
    }
  };
  std::uint64_t others = shape_.others;
  for (Outgoing& one : outgoing_) {
    SendSpec send{.peer = one.message().peer, .source = &one, .ready = one.ready()};
    measure(send, one.message());
    stages[one.stage()].sends.push_back(std::move(send));
  }
  for (Incoming& one : incoming_) {
    ReceiveSpec receive{.peer = one.message().peer, .sink = &one};
    measure(receive, one.message());
    if (one.stage() == 0) others &= ~bit(receive.peer);
    stages[one.stage()].receives.push_back(std::move(receive));
  }
  for (; others != 0; others &= others - 1) {
    stages[0].receives.push_back({.peer = static_cast<Rank>(std::countr_zero(others))});
  }
  return stages;
}

void ScheduleExecutor::advance(Endpoint& endpoint, OperationHandle operation) {
  for (Outgoing& one : outgoing_) {
    if (!one.advance()) continue;
    endpoint.advance(operation, one.stage(), one.message().peer, one.ready());
  }
}

/// The kept piece; null if it has no elements.
const Schedule::Piece* ScheduleExecutor::kept_piece() const {
  const Schedule::Stage& stage = schedule_.stages[kept_stage_];
  return stage.sends.empty() ? nullptr : &schedule_.pieces[stage.sends[0].first_piece];
}

std::uint64_t ScheduleExecutor::kept_bytes() const {
  const Schedule::Piece* const kept = kept_piece();
  return kept == nullptr ? 0 : chunks_.bytes_of(*kept);
}

std::uint32_t ScheduleExecutor::kept_slots() const {
  return slots(kept_bytes(), shape_.chunks.slot_bytes);
}

void ScheduleExecutor::copy_kept(std::uint32_t first, std::uint32_t count, Retained& to) const {
  const Schedule::Piece& kept = *kept_piece();
  const std::uint32_t slot_bytes = shape_.chunks.slot_bytes;
  const std::byte* const data = chunks_.source_of(kept);
  const std::uint64_t end =
      std::min(std::uint64_t{first + count} * slot_bytes, chunks_.bytes_of(kept));
  to.bytes.insert(to.bytes.end(), data + std::uint64_t{first} * slot_bytes, data + end);
  to.contributors.insert(to.contributors.end(), count, chunks_.contributors(kept));
}

}  // namespace tarpon
