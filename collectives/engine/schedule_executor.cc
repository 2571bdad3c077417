#include "collectives/engine/schedule_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

/// In place of a version: the result is here, and the sums before it never were. Above all others.
constexpr std::uint8_t kSkipped = 0xff;

/// The slots of a piece within its message.
struct SlotRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t end() const { return first + count; }
};

std::size_t message_count(const Schedule& schedule,
                          std::vector<Schedule::Message> Schedule::Stage::*of) {
  std::size_t messages = 0;
  for (const Schedule::Stage& stage : schedule.stages) messages += (stage.*of).size();
  return messages;
}

/// Whether a piece of partial results is sent.
bool travels_partial(const Schedule& schedule) {
  return std::any_of(schedule.pieces.begin(), schedule.pieces.end(),
                     [](const Schedule::Piece& piece) { return piece.partial; });
}

/// The piece of a message that `slot` belongs to.
template <typename Pieces>
auto& piece_at(Pieces pieces, std::uint32_t slot) {
  if (pieces.size() == 1) return pieces[0];
  return *std::prev(std::upper_bound(
      pieces.begin(), pieces.end(), slot,
      [](std::uint32_t number, const auto& one) { return number < one.slots.first; }));
}

}  // namespace

/// A chunk: where its cells and versions are.
struct ScheduleExecutor::Cells {
  std::uint32_t first = 0;  // of its cells, in versions_
  std::uint32_t count = 0;
  std::uint32_t version = 0;   // of its versions, in contributors_
  std::uint32_t addition = 0;  // of its additions, in additions_
  std::uint64_t place = 0;     // of its partial results
};

/// A version that is still to be sent when the next one takes its place.
struct ScheduleExecutor::Kept {
  std::uint32_t chunk = 0, version = 0;
  std::size_t width = 0;  // bytes of an element
  std::uint64_t size = 0;
  std::byte* bytes = nullptr;  // in kept_memory_

  auto key() const { return std::pair(chunk, version); }
};

struct ScheduleExecutor::SentPiece {
  Schedule::Piece piece;
  SlotRun slots;
  std::uint32_t cells_a_slot = 1;
  const std::byte* data = nullptr;
};

struct ScheduleExecutor::ReceivedPiece {
  Schedule::Piece piece;
  SlotRun slots;
  std::size_t width = 0;               // bytes of an element
  std::uint64_t contributors = 0;      // as its packets say
  std::uint32_t first_parked = kNone;  // of its cells, in parked_; kNone: none is early
};

class ScheduleExecutor::Outgoing : public Source {
 public:
  Outgoing(const ScheduleExecutor& executor, std::uint8_t stage, const Schedule::Message& message)
      : executor_(executor), stage_(stage), message_(message) {}

  SlotView view(std::uint32_t slot) override {
    const SentPiece& one = piece_at(pieces(), slot);
    const std::uint32_t version = executor_.chunks_[one.piece.chunk].version + one.piece.version;
    return {at(one, slot), executor_.contributors_[version]};
  }
  void write(std::uint32_t slot, std::span<std::byte> frame) override {
    std::memcpy(frame.data(), at(piece_at(pieces(), slot), slot), frame.size());
  }

  /// The slots that may go out have grown.
  bool advance() {
    const std::uint32_t before = ready_;
    for (; next_ < message_.piece_count; ++next_) {
      const SentPiece& one = pieces()[next_];
      if (one.piece.version == 0) ready_ = one.slots.end();
      while (ready_ < one.slots.end() && executor_.holds(one, ready_ - one.slots.first)) ++ready_;
      if (ready_ < one.slots.end()) break;
    }
    return ready_ > before;
  }

  std::span<const SentPiece> pieces() const {
    return {executor_.sent_.data() + message_.first_piece, message_.piece_count};
  }
  std::uint8_t stage() const { return stage_; }
  Rank peer() const { return message_.peer; }
  std::uint32_t ready() const { return ready_; }

 private:
  const std::byte* at(const SentPiece& one, std::uint32_t slot) const {
    return one.data + std::uint64_t{slot - one.slots.first} * executor_.shape_.slot_bytes;
  }

  const ScheduleExecutor& executor_;
  std::uint8_t stage_;
  Schedule::Message message_;
  std::uint32_t ready_ = 0;
  std::uint32_t next_ = 0;  // piece that ready_ lies in
};

class ScheduleExecutor::Incoming : public Sink {
 public:
  Incoming(ScheduleExecutor& executor, std::uint8_t stage, const Schedule::Message& message)
      : executor_(executor), stage_(stage), message_(message) {}

  void deliver(Rank, std::uint32_t slot, std::span<const std::byte> payload,
               std::uint64_t contributors) override {
    const std::span<ReceivedPiece> pieces{executor_.received_.data() + message_.first_piece,
                                          message_.piece_count};
    ReceivedPiece& one = piece_at(pieces, slot);
    one.contributors = contributors;
    executor_.deliver(one, slot - one.slots.first, payload);
  }

  std::span<const ReceivedPiece> pieces() const {
    return {executor_.received_.data() + message_.first_piece, message_.piece_count};
  }
  std::uint8_t stage() const { return stage_; }
  Rank peer() const { return message_.peer; }

 private:
  ScheduleExecutor& executor_;
  std::uint8_t stage_;
  Schedule::Message message_;
};

ScheduleExecutor::ScheduleExecutor(Schedule schedule, const Shape& shape)
    : schedule_(std::move(schedule)),
      shape_(shape),
      sums_(shape.sums),
      cell_elements_(shape.slot_bytes / sums_.width(travels_partial(schedule_))),
      parked_(*shape.buffers) {
  lay_out_cells();
  keep_sent();
  lay_out_sends();
  lay_out_receives();
  choose_kept_stage();
}

ScheduleExecutor::~ScheduleExecutor() {
  if (kept_memory_) shape_.buffers->release(std::move(*kept_memory_));
}

std::uint64_t ScheduleExecutor::partial_results(const Schedule& schedule) {
  std::uint64_t count = 0;
  for (const Schedule::Chunk& chunk : schedule.chunks) {
    if (chunk.additions > 0) count += chunk.elements.count;
  }
  return count;
}

void ScheduleExecutor::lay_out_cells() {
  Cells next;
  chunks_.reserve(schedule_.chunks.size());
  for (const Schedule::Chunk& chunk : schedule_.chunks) {
    const std::uint64_t count = (chunk.elements.count + cell_elements_ - 1) / cell_elements_;
    next.count = static_cast<std::uint32_t>(count);
    chunks_.push_back(next);
    next.first += next.count;
    next.version += chunk.last_version() + 1;
    next.addition += chunk.additions;
    if (chunk.additions > 0) next.place += chunk.elements.count;
  }
  versions_.assign(next.first, 0);
  contributors_.assign(next.version, bit(shape_.rank));
  additions_.assign(next.addition, kNone);
}

/// Sets memory aside for the versions that are sent and then added to. The rank's own contribution
/// is one of them where it lies in the output, and is copied.
void ScheduleExecutor::keep_sent() {
  find_kept_pieces();
  const auto padded = [](std::uint64_t bytes) {
    return (bytes + kShardAlignment - 1) / kShardAlignment * (kShardAlignment / sizeof(float));
  };
  std::uint64_t floats = 0;
  for (const Kept& one : kept_) floats += padded(one.size);
  if (floats == 0) return;
  kept_memory_ = shape_.buffers->allocate(floats);
  float* next = kept_memory_->get();
  for (Kept& one : kept_) {
    one.bytes = reinterpret_cast<std::byte*>(next);
    next += padded(one.size);
    if (one.version > 0) continue;
    const std::uint64_t first = schedule_.chunks[one.chunk].elements.first;
    std::memcpy(one.bytes, shape_.input + first * one.width, one.size);
  }
}

void ScheduleExecutor::find_kept_pieces() {
  const bool in_place = shape_.input == shape_.sums.output;
  for (const Schedule::Stage& stage : schedule_.stages) {
    for (const Schedule::Message& message : stage.sends) {
      for (const Schedule::Piece& piece : schedule_.pieces_of(message)) {
        const Schedule::Chunk& chunk = schedule_.chunks[piece.chunk];
        const bool changes = piece.version < chunk.additions && (piece.version > 0 || in_place);
        if (!changes) continue;
        kept_.push_back(
            {piece.chunk, piece.version, sums_.width(piece.partial), bytes_of(piece), nullptr});
      }
    }
  }
  const auto less = [](const Kept& a, const Kept& b) { return a.key() < b.key(); };
  const auto same = [](const Kept& a, const Kept& b) { return a.key() == b.key(); };
  std::sort(kept_.begin(), kept_.end(), less);
  kept_.erase(std::unique(kept_.begin(), kept_.end(), same), kept_.end());
}

const ScheduleExecutor::Kept* ScheduleExecutor::find_kept(std::uint32_t chunk,
                                                          std::uint32_t version) const {
  const std::pair wanted(chunk, version);
  const auto found =
      std::lower_bound(kept_.begin(), kept_.end(), wanted,
                       [](const Kept& one, const auto& key) { return one.key() < key; });
  return found != kept_.end() && found->key() == wanted ? &*found : nullptr;
}

/// Where a piece that is sent lies.
const std::byte* ScheduleExecutor::source_of(const Schedule::Piece& piece) const {
  const Schedule::Chunk& chunk = schedule_.chunks[piece.chunk];
  if (const Kept* const kept = find_kept(piece.chunk, piece.version)) return kept->bytes;
  if (piece.version == 0) return shape_.input + chunk.elements.first * sums_.width(false);
  return piece.partial ? sums_.partial(chunk.elements.first, chunks_[piece.chunk].place)
                       : sums_.result(chunk.elements.first);
}

std::uint64_t ScheduleExecutor::bytes_of(const Schedule::Piece& piece) const {
  return schedule_.chunks[piece.chunk].elements.count * sums_.width(piece.partial);
}

/// Calls `each(number, slots)` for each piece of the messages that `of` names, in the schedule's
/// order, and after the pieces of a message `made(stage, message)`.
template <typename Each, typename Made>
void ScheduleExecutor::each_message(std::vector<Schedule::Message> Schedule::Stage::*of, Each each,
                                    Made made) {
  for (std::size_t stage = 0; stage < schedule_.stages.size(); ++stage) {
    for (const Schedule::Message& message : schedule_.stages[stage].*of) {
      SlotRun slots;
      const std::uint32_t end = message.first_piece + message.piece_count;
      for (std::uint32_t number = message.first_piece; number < end; ++number) {
        const std::uint64_t bytes = bytes_of(schedule_.pieces[number]);
        slots = {slots.end(), tarpon::slots(bytes, shape_.slot_bytes)};
        each(number, slots);
      }
      made(static_cast<std::uint8_t>(stage), message);
    }
  }
}

void ScheduleExecutor::lay_out_sends() {
  sent_.resize(schedule_.pieces.size());
  outgoing_.reserve(message_count(schedule_, &Schedule::Stage::sends));
  each_message(
      &Schedule::Stage::sends,
      [this](std::uint32_t number, SlotRun slots) {
        const Schedule::Piece& piece = schedule_.pieces[number];
        const std::uint64_t cells = shape_.slot_bytes / sums_.width(piece.partial) / cell_elements_;
        sent_[number] = {piece, slots, static_cast<std::uint32_t>(cells), source_of(piece)};
        bytes_sent_ += bytes_of(piece);
      },
      [this](std::uint8_t stage, const Schedule::Message& message) {
        outgoing_.emplace_back(*this, stage, message).advance();
      });
}

void ScheduleExecutor::lay_out_receives() {
  received_.resize(schedule_.pieces.size());
  incoming_.reserve(message_count(schedule_, &Schedule::Stage::receives));
  std::size_t widest = 0;  // bytes of an element that may be parked
  each_message(
      &Schedule::Stage::receives,
      [this, &widest](std::uint32_t number, SlotRun slots) {
        const Schedule::Piece& piece = schedule_.pieces[number];
        const Cells& cells = chunks_[piece.chunk];
        ReceivedPiece& one = received_[number];
        one = {.piece = piece, .slots = slots, .width = sums_.width(piece.partial)};
        if (piece.version > schedule_.chunks[piece.chunk].additions) return;
        additions_[cells.addition + piece.version - 1] = number;
        if (piece.version == 1) return;
        one.first_parked = parked_.expect(cells.count);
        widest = std::max(widest, one.width);
      },
      [this](std::uint8_t stage, const Schedule::Message& message) {
        incoming_.emplace_back(*this, stage, message);
      });
  parked_.allocate(cell_elements_ * widest);
}

/// In such a stage each rank sends its piece to all others. So each rank sees the pieces of all
/// ranks, and all ranks choose alike.
void ScheduleExecutor::choose_kept_stage() {
  for (std::size_t i = 0; i < schedule_.stages.size(); ++i) {
    const Schedule::Stage& stage = schedule_.stages[i];
    if (!stage.alike) continue;
    const auto small = [this](const Schedule::Message& message) {
      return bytes_of(schedule_.pieces[message.first_piece]) <= shape_.confirm_above;
    };
    kept_stage_ = static_cast<std::uint8_t>(i);
    confirms_kept_ = !std::all_of(stage.sends.begin(), stage.sends.end(), small) ||
                     !std::all_of(stage.receives.begin(), stage.receives.end(), small);
  }
}

std::vector<StageSpec> ScheduleExecutor::stages() {
  std::vector<StageSpec> stages(schedule_.stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    stages[i].acknowledge = schedule_.stages[i].confirmed && (i != kept_stage_ || confirms_kept_);
    stages[i].sends.reserve(schedule_.stages[i].sends.size());
    stages[i].receives.reserve(shape_.sums.world);
  }
  const auto measure = [&](auto& to, const auto& message) {
    for (const auto& one : message.pieces()) {
      to.bytes += bytes_of(one.piece);
      if (message.pieces().size() > 1) to.ranges.push_back(bytes_of(one.piece));
    }
  };
  std::uint64_t heard = bit(shape_.rank);
  for (Outgoing& message : outgoing_) {
    SendSpec send{.peer = message.peer(), .source = &message, .ready = message.ready()};
    measure(send, message);
    stages[message.stage()].sends.push_back(std::move(send));
  }
  for (Incoming& message : incoming_) {
    ReceiveSpec receive{.peer = message.peer(), .sink = &message};
    measure(receive, message);
    if (message.stage() == 0) heard |= bit(message.peer());
    stages[message.stage()].receives.push_back(std::move(receive));
  }
  // Nothing comes of the other ranks, but all have to make the same call.
  for (Rank peer = 0; peer < shape_.sums.world; ++peer) {
    if ((heard & bit(peer)) == 0) stages[0].receives.push_back({.peer = peer});
  }
  return stages;
}

/// Whether a sent slot has reached its version, and may be read.
bool ScheduleExecutor::holds(const SentPiece& one, std::uint32_t slot) const {
  const Cells& chunk = chunks_[one.piece.chunk];
  const std::uint32_t first = slot * one.cells_a_slot;
  const std::uint32_t end = std::min(first + one.cells_a_slot, chunk.count);
  const bool sum = one.piece.version <= schedule_.chunks[one.piece.chunk].additions;
  return std::all_of(versions_.begin() + chunk.first + first, versions_.begin() + chunk.first + end,
                     [&](std::uint8_t version) {
                       return version >= one.piece.version && !(sum && version == kSkipped);
                     });
}

void ScheduleExecutor::advance(Endpoint& endpoint, OperationHandle operation) {
  for (Outgoing& message : outgoing_) {
    if (!message.advance()) continue;
    endpoint.advance(operation, message.stage(), message.peer(), message.ready());
  }
}

Range ScheduleExecutor::elements_of(std::uint32_t chunk, std::uint32_t cell) const {
  const Range all = schedule_.chunks[chunk].elements;
  const std::uint64_t first = cell * cell_elements_;
  return {all.first + first, std::min(cell_elements_, all.count - first)};
}

void ScheduleExecutor::deliver(ReceivedPiece& piece, std::uint32_t slot,
                               std::span<const std::byte> payload) {
  const std::uint64_t offset = std::uint64_t{slot} * shape_.slot_bytes;
  auto cell = static_cast<std::uint32_t>(offset / piece.width / cell_elements_);
  const std::size_t step = cell_elements_ * piece.width;
  for (std::size_t at = 0; at < payload.size(); at += step, ++cell) {
    take(piece, cell, payload.subspan(at, std::min(step, payload.size() - at)));
  }
}

/// One cell of a piece has come.
void ScheduleExecutor::take(ReceivedPiece& piece, std::uint32_t cell,
                            std::span<const std::byte> data) {
  const Cells& chunk = chunks_[piece.piece.chunk];
  const std::uint32_t additions = schedule_.chunks[piece.piece.chunk].additions;
  std::uint8_t& version = versions_[chunk.first + cell];
  if (piece.piece.version > additions) {
    std::memcpy(sums_.result(elements_of(piece.piece.chunk, cell).first), data.data(), data.size());
    contributors_[chunk.version + piece.piece.version] = piece.contributors;
    // A result holds all sums of this rank, so that these were made before. The exception is a rank
    // that was started anew: packets that its predecessor asked for may bring a result first.
    const bool skips = version + 1u != piece.piece.version;
    version = skips ? kSkipped : static_cast<std::uint8_t>(piece.piece.version);
    return;
  }
  if (version == kSkipped) return;
  if (version + 1u != piece.piece.version) return parked_.park(piece.first_parked + cell, data);
  add(piece, cell, data.data());
  while (version < additions) {
    const std::uint32_t next = additions_[chunk.addition + version];
    if (next == kNone || received_[next].first_parked == kNone) return;
    const std::uint32_t early = received_[next].first_parked + cell;
    if (!parked_.holds(early)) return;
    add(received_[next], cell, parked_.take(early));
  }
}

/// Makes the version of `piece`. REQUIRES: the cell has the one before.
void ScheduleExecutor::add(const ReceivedPiece& piece, std::uint32_t cell, const std::byte* data) {
  const Schedule::Chunk& chunk = schedule_.chunks[piece.piece.chunk];
  const Cells& cells = chunks_[piece.piece.chunk];
  const Range range = elements_of(piece.piece.chunk, cell);
  const std::uint32_t version = piece.piece.version;
  const bool has_partials = sums_.width(true) != sums_.width(false);
  const bool own_now = chunk.own_turn == version;
  const bool last = version == chunk.additions && !chunk.stored;
  const Sums::Operand addend{data, piece.piece.partial && has_partials};
  const Sums::Operand own{this->own(piece.piece.chunk, range.first), false};
  const Sums::Operand alone{sums_.result(range.first), false};  // one contribution is an element
  const std::uint64_t place = cells.place + cell * cell_elements_;
  const Sums::Operand sum{sums_.partial(range.first, place), has_partials};
  const bool begins = version == 1 && chunk.own_turn > 0;
  std::uint64_t* const contributors = contributors_.data() + cells.version;
  contributors[version] = piece.contributors;
  if (begins) {
    std::memcpy(sums_.result(range.first), data, range.count * piece.width);
  } else {
    contributors[version] |= contributors[version - 1];
    const bool is_alone = version == 2 && chunk.own_turn > 1;
    const Sums::Operand before = version == 1 ? own : is_alone ? alone : sum;
    if (piece.piece.left) {
      sums_.add(range, place, addend, before, last && !own_now);
    } else {
      sums_.add(range, place, before, addend, last && !own_now);
    }
  }
  if (own_now) {
    contributors[version] |= bit(shape_.rank);
    sums_.add(range, place, begins ? alone : sum, own, last);
  }
  versions_[cells.first + cell] = static_cast<std::uint8_t>(version);
  keep(piece.piece.chunk, cell, version);
}

/// Copies a version that was made, where it is sent and then added to.
void ScheduleExecutor::keep(std::uint32_t chunk, std::uint32_t cell, std::uint32_t version) {
  const Kept* const kept = find_kept(chunk, version);
  if (kept == nullptr) return;
  const Range range = elements_of(chunk, cell);
  const std::uint64_t place = chunks_[chunk].place + cell * cell_elements_;
  std::memcpy(kept->bytes + cell * cell_elements_ * kept->width, sums_.partial(range.first, place),
              range.count * kept->width);
}

const std::byte* ScheduleExecutor::own(std::uint32_t chunk, std::uint64_t first) const {
  if (const Kept* const kept = find_kept(chunk, 0)) {
    return kept->bytes + (first - schedule_.chunks[chunk].elements.first) * kept->width;
  }
  return shape_.input + first * sums_.width(false);
}

/// Null where it has no elements.
const ScheduleExecutor::SentPiece* ScheduleExecutor::kept_piece() const {
  const Schedule::Stage& stage = schedule_.stages[kept_stage_];
  return stage.sends.empty() ? nullptr : &sent_[stage.sends[0].first_piece];
}

std::uint64_t ScheduleExecutor::kept_bytes() const {
  const SentPiece* const kept = kept_piece();
  return kept == nullptr ? 0 : bytes_of(kept->piece);
}

std::uint32_t ScheduleExecutor::kept_slots() const {
  const SentPiece* const kept = kept_piece();
  return kept == nullptr ? 0 : kept->slots.count;
}

void ScheduleExecutor::copy_kept(std::uint32_t first, std::uint32_t count, Retained& to) const {
  const SentPiece& kept = *kept_piece();
  const std::uint64_t from = std::uint64_t{first} * shape_.slot_bytes;
  const std::uint64_t end =
      std::min(std::uint64_t{first + count} * shape_.slot_bytes, bytes_of(kept.piece));
  to.bytes.insert(to.bytes.end(), kept.data + from, kept.data + end);
  to.contributors.insert(to.contributors.end(), count,
                         contributors_[chunks_[kept.piece.chunk].version + kept.piece.version]);
}

}  // namespace tarpon
