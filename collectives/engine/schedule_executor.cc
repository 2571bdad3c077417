#include "collectives/engine/schedule_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

/// In place of a version: the result is here, and the sums before it never were. Above all others.
constexpr std::uint8_t kSkipped = 0xff;

/// Memory that is not touched before it is used.
class RawBytes {
 public:
  RawBytes() = default;
  RawBytes(std::uint64_t bytes, std::pmr::memory_resource* memory)
      : memory_(memory),
        data_(static_cast<std::byte*>(memory->allocate(bytes, kShardAlignment))),
        bytes_(bytes) {}
  RawBytes(RawBytes&& other) noexcept
      : memory_(other.memory_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  RawBytes& operator=(RawBytes&&) = delete;
  ~RawBytes() {
    if (data_ != nullptr) memory_->deallocate(data_, bytes_, kShardAlignment);
  }

  std::byte* data() const { return data_; }

 private:
  std::pmr::memory_resource* memory_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// The slots of a piece within its message.
struct SlotRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t end() const { return first + count; }
};

}  // namespace

/// A chunk: its cells, and what makes its versions.
struct ScheduleExecutor::Cells {
  std::uint32_t first = 0;  // index of its first cell in versions_
  std::uint32_t count = 0;
  std::vector<std::uint64_t> contributors;      // of each version
  std::vector<const ReceivedPiece*> additions;  // version v is made by additions[v - 1]
  std::vector<const Kept*> kept;
};

/// A version that is still to be sent when the next one takes its place.
struct ScheduleExecutor::Kept {
  std::uint32_t version = 0;
  std::size_t width = 0;  // bytes of an element
  RawBytes memory;
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
  std::size_t width = 0;            // bytes of an element
  std::uint64_t contributors = 0;   // as its packets say
  RawBytes early;                   // cells that wait for the version before
  std::vector<std::uint8_t> waits;  // by cell: whether it does; empty where none can
};

class ScheduleExecutor::Outgoing : public Source {
 public:
  Outgoing(const ScheduleExecutor& executor, std::uint8_t stage, Rank peer)
      : executor_(executor), stage_(stage), peer_(peer) {}

  SlotView view(std::uint32_t slot) override {
    const SentPiece& one = piece_at(slot);
    return {at(one, slot), executor_.chunks_[one.piece.chunk].contributors[one.piece.version]};
  }
  void write(std::uint32_t slot, std::span<std::byte> frame) override {
    std::memcpy(frame.data(), at(piece_at(slot), slot), frame.size());
  }

  /// The slots that may go out have grown.
  bool advance() {
    const std::uint32_t before = ready_;
    for (; next_ < pieces.size(); ++next_) {
      const SentPiece& one = pieces[next_];
      if (one.piece.version == 0) ready_ = one.slots.end();
      while (ready_ < one.slots.end() && executor_.holds(one, ready_ - one.slots.first)) ++ready_;
      if (ready_ < one.slots.end()) break;
    }
    return ready_ > before;
  }

  std::uint8_t stage() const { return stage_; }
  Rank peer() const { return peer_; }
  std::uint32_t ready() const { return ready_; }

  std::vector<SentPiece> pieces;
  std::vector<std::uint64_t> bytes;  // of each piece

 private:
  const SentPiece& piece_at(std::uint32_t slot) const {
    return *std::prev(std::upper_bound(
        pieces.begin(), pieces.end(), slot,
        [](std::uint32_t number, const SentPiece& one) { return number < one.slots.first; }));
  }
  const std::byte* at(const SentPiece& one, std::uint32_t slot) const {
    return one.data + std::uint64_t{slot - one.slots.first} * executor_.shape_.slot_bytes;
  }

  const ScheduleExecutor& executor_;
  const std::uint8_t stage_;
  const Rank peer_;
  std::uint32_t ready_ = 0;
  std::size_t next_ = 0;  // piece that ready_ lies in
};

class ScheduleExecutor::Incoming : public Sink {
 public:
  Incoming(ScheduleExecutor& executor, std::uint8_t stage, Rank peer)
      : executor_(executor), stage_(stage), peer_(peer) {}

  void deliver(Rank, std::uint32_t slot, std::span<const std::byte> payload,
               std::uint64_t contributors) override {
    const auto after = std::upper_bound(
        pieces.begin(), pieces.end(), slot,
        [](std::uint32_t number, const ReceivedPiece& one) { return number < one.slots.first; });
    ReceivedPiece& one = *std::prev(after);
    one.contributors = contributors;
    executor_.deliver(one, slot - one.slots.first, payload);
  }

  std::uint8_t stage() const { return stage_; }
  Rank peer() const { return peer_; }

  std::vector<ReceivedPiece> pieces;
  std::vector<std::uint64_t> bytes;  // of each piece

 private:
  ScheduleExecutor& executor_;
  const std::uint8_t stage_;
  const Rank peer_;
};

ScheduleExecutor::ScheduleExecutor(Schedule schedule, const Shape& shape)
    : schedule_(std::move(schedule)),
      shape_(shape),
      sums_(shape.sums),
      cell_elements_(shape.slot_bytes / sums_.width(true)) {
  lay_out_cells();
  keep_sent();
  lay_out_messages();
}

ScheduleExecutor::~ScheduleExecutor() = default;

void ScheduleExecutor::lay_out_cells() {
  std::uint32_t cells = 0;
  chunks_.resize(schedule_.chunks.size());
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const Schedule::Chunk& chunk = schedule_.chunks[i];
    const std::uint64_t count = (chunk.elements.count + cell_elements_ - 1) / cell_elements_;
    chunks_[i].first = cells;
    chunks_[i].count = static_cast<std::uint32_t>(count);
    chunks_[i].contributors.assign(chunk.last_version() + 1, bit(shape_.rank));
    chunks_[i].additions.assign(chunk.additions, nullptr);
    cells += chunks_[i].count;
  }
  versions_.assign(cells, 0);
}

/// Sets memory aside for the versions that are sent and then added to. The rank's own contribution
/// is one of them where it lies in the output, and is copied.
void ScheduleExecutor::keep_sent() {
  kept_.reserve([this] {
    std::size_t pieces = 0;
    for (const Schedule::Stage& stage : schedule_.stages) {
      for (const Schedule::Message& message : stage.sends) pieces += message.pieces.size();
    }
    return pieces;
  }());
  const bool in_place = shape_.input == shape_.sums.output;
  for (const Schedule::Stage& stage : schedule_.stages) {
    for (const Schedule::Message& message : stage.sends) {
      for (const Schedule::Piece& piece : message.pieces) {
        const Schedule::Chunk& chunk = schedule_.chunks[piece.chunk];
        const bool changes = piece.version < chunk.additions && (piece.version > 0 || in_place);
        if (!changes || find_kept(piece.chunk, piece.version) != nullptr) continue;
        const std::size_t width = sums_.width(piece.partial);
        kept_.push_back(
            {piece.version, width, RawBytes(chunk.elements.count * width, shape_.memory)});
        chunks_[piece.chunk].kept.push_back(&kept_.back());
        if (piece.version > 0) continue;
        std::memcpy(kept_.back().memory.data(), shape_.input + chunk.elements.first * width,
                    chunk.elements.count * width);
      }
    }
  }
}

const ScheduleExecutor::Kept* ScheduleExecutor::find_kept(std::uint32_t chunk,
                                                          std::uint32_t version) const {
  for (const Kept* const one : chunks_[chunk].kept) {
    if (one->version == version) return one;
  }
  return nullptr;
}

/// Where a piece that is sent lies.
const std::byte* ScheduleExecutor::source_of(const Schedule::Piece& piece) const {
  const Schedule::Chunk& chunk = schedule_.chunks[piece.chunk];
  if (const Kept* const kept = find_kept(piece.chunk, piece.version)) return kept->memory.data();
  if (piece.version == 0) return shape_.input + chunk.elements.first * sums_.width(false);
  return piece.partial ? sums_.partial(chunk.elements.first) : sums_.result(chunk.elements.first);
}

void ScheduleExecutor::lay_out_messages() {
  const auto lay_out = [this](const Schedule::Piece& piece, auto& message) {
    const std::size_t width = sums_.width(piece.partial);
    message.bytes.push_back(schedule_.chunks[piece.chunk].elements.count * width);
    SlotRun slots;
    if (!message.pieces.empty()) slots.first = message.pieces.back().slots.end();
    slots.count = tarpon::slots(message.bytes.back(), shape_.slot_bytes);
    return slots;
  };
  for (std::size_t i = 0; i < schedule_.stages.size(); ++i) {
    const auto stage = static_cast<std::uint8_t>(i);
    for (const Schedule::Message& message : schedule_.stages[i].sends) {
      outgoing_.push_back(std::make_unique<Outgoing>(*this, stage, message.peer));
      Outgoing& to = *outgoing_.back();
      for (const Schedule::Piece& piece : message.pieces) {
        const SlotRun slots = lay_out(piece, to);
        const std::uint64_t elements_a_slot = shape_.slot_bytes / sums_.width(piece.partial);
        to.pieces.push_back({piece, slots,
                             static_cast<std::uint32_t>(elements_a_slot / cell_elements_),
                             source_of(piece)});
        bytes_sent_ += to.bytes.back();
      }
      to.advance();
    }
    for (const Schedule::Message& message : schedule_.stages[i].receives) {
      incoming_.push_back(std::make_unique<Incoming>(*this, stage, message.peer));
      Incoming& from = *incoming_.back();
      from.pieces.reserve(message.pieces.size());
      for (const Schedule::Piece& piece : message.pieces) {
        const SlotRun slots = lay_out(piece, from);
        const bool adds = piece.version <= schedule_.chunks[piece.chunk].additions;
        const bool may_wait = adds && piece.version > 1;
        from.pieces.push_back(
            {.piece = piece,
             .slots = slots,
             .width = sums_.width(piece.partial),
             .early = may_wait ? RawBytes(from.bytes.back(), shape_.memory) : RawBytes(),
             .waits = std::vector<std::uint8_t>(may_wait ? chunks_[piece.chunk].count : 0)});
        if (adds) chunks_[piece.chunk].additions[piece.version - 1] = &from.pieces.back();
      }
    }
  }
}

std::vector<StageSpec> ScheduleExecutor::stages(std::uint64_t confirm_above) {
  std::vector<StageSpec> stages(schedule_.stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    stages[i].acknowledge = schedule_.stages[i].confirmed;
  }
  const auto spec = [](auto& to, const auto& message) {
    for (const std::uint64_t bytes : message->bytes) to.bytes += bytes;
    if (message->bytes.size() > 1) to.ranges = message->bytes;
  };
  std::uint64_t heard = bit(shape_.rank);
  for (const auto& message : outgoing_) {
    SendSpec send{.peer = message->peer(), .source = message.get(), .ready = message->ready()};
    spec(send, message);
    stages[message->stage()].sends.push_back(std::move(send));
  }
  for (const auto& message : incoming_) {
    ReceiveSpec receive{.peer = message->peer(), .sink = message.get()};
    spec(receive, message);
    if (message->stage() == 0) heard |= bit(message->peer());
    stages[message->stage()].receives.push_back(std::move(receive));
  }
  // Nothing comes of the other ranks, but all have to make the same call.
  for (Rank peer = 0; peer < shape_.sums.world; ++peer) {
    if ((heard & bit(peer)) == 0) stages[0].receives.push_back({.peer = peer});
  }
  if (const std::uint8_t kept = retained_stage(); kept != kNoStage) {
    if (stages[kept].sends[0].bytes <= confirm_above) stages[kept].acknowledge = false;
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
  for (const auto& message : outgoing_) {
    if (!message->advance()) continue;
    endpoint.advance(operation, message->stage(), message->peer(), message->ready());
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
  Cells& chunk = chunks_[piece.piece.chunk];
  std::uint8_t& version = versions_[chunk.first + cell];
  if (piece.piece.version > schedule_.chunks[piece.piece.chunk].additions) {
    std::memcpy(sums_.result(elements_of(piece.piece.chunk, cell).first), data.data(), data.size());
    chunk.contributors[piece.piece.version] = piece.contributors;
    // The result holds what this rank has sent, so that nothing is skipped. But a rank that came up
    // again may be sent what it had asked for before.
    const bool skips = version + 1u != piece.piece.version;
    version = skips ? kSkipped : static_cast<std::uint8_t>(piece.piece.version);
    return;
  }
  if (version + 1u != piece.piece.version) {
    if (piece.waits.empty()) return;  // the first addition, to a cell that was skipped
    std::memcpy(piece.early.data() + cell * cell_elements_ * piece.width, data.data(), data.size());
    piece.waits[cell] = 1;
    return;
  }
  add(piece, cell, data.data());
  while (version < chunk.additions.size()) {
    const ReceivedPiece* const next = chunk.additions[version];
    if (next == nullptr || next->waits.empty() || next->waits[cell] == 0) return;
    add(*next, cell, next->early.data() + cell * cell_elements_ * next->width);
  }
}

/// Makes the version of `piece`. REQUIRES: the cell has the one before.
void ScheduleExecutor::add(const ReceivedPiece& piece, std::uint32_t cell, const std::byte* data) {
  const Schedule::Chunk& chunk = schedule_.chunks[piece.piece.chunk];
  Cells& cells = chunks_[piece.piece.chunk];
  const Range range = elements_of(piece.piece.chunk, cell);
  const std::uint32_t version = piece.piece.version;
  const bool has_partials = sums_.width(true) != sums_.width(false);
  const bool own_now = chunk.own_turn == version;
  const bool last = version == chunk.additions && !chunk.stored;
  const Sums::Operand addend{data, piece.piece.partial && has_partials};
  const Sums::Operand own{this->own(piece.piece.chunk, range.first), false};
  const Sums::Operand alone{sums_.result(range.first), false};  // one contribution is an element
  const Sums::Operand sum{sums_.partial(range.first), has_partials};
  const bool begins = version == 1 && chunk.own_turn > 0;
  keep(piece.piece.chunk, cell, version - 1);
  cells.contributors[version] = piece.contributors;
  if (begins) {
    std::memcpy(sums_.result(range.first), data, range.count * piece.width);
  } else {
    cells.contributors[version] |= cells.contributors[version - 1];
    const bool is_alone = version == 2 && chunk.own_turn > 1;
    const Sums::Operand before = version == 1 ? own : is_alone ? alone : sum;
    sums_.add(range, before, addend, last && !own_now);
  }
  if (own_now) {
    cells.contributors[version] |= bit(shape_.rank);
    sums_.add(range, begins ? alone : sum, own, last);
  }
  versions_[cells.first + cell] = static_cast<std::uint8_t>(version);
}

/// Copies a version that is about to be added to, where it is still to be sent.
void ScheduleExecutor::keep(std::uint32_t chunk, std::uint32_t cell, std::uint32_t version) {
  const Kept* const kept = version == 0 ? nullptr : find_kept(chunk, version);
  if (kept == nullptr) return;
  const Range range = elements_of(chunk, cell);
  std::memcpy(kept->memory.data() + cell * cell_elements_ * kept->width, sums_.partial(range.first),
              range.count * kept->width);
}

const std::byte* ScheduleExecutor::own(std::uint32_t chunk, std::uint64_t first) const {
  if (const Kept* const kept = find_kept(chunk, 0)) {
    return kept->memory.data() + (first - schedule_.chunks[chunk].elements.first) * kept->width;
  }
  return shape_.input + first * sums_.width(false);
}

std::uint8_t ScheduleExecutor::retained_stage() const {
  std::uint8_t found = kNoStage;
  for (std::size_t i = 0; i < schedule_.stages.size(); ++i) {
    const Schedule::Stage& stage = schedule_.stages[i];
    if (!stage.confirmed || stage.sends.empty()) continue;
    const auto same = [&](const Schedule::Message& message) {
      return message.pieces.size() == 1 && message.pieces == stage.sends[0].pieces;
    };
    if (found != kNoStage || !std::all_of(stage.sends.begin(), stage.sends.end(), same)) {
      return kNoStage;
    }
    found = static_cast<std::uint8_t>(i);
  }
  return found;
}

std::unique_ptr<Retained> ScheduleExecutor::retained() const {
  auto result = std::make_unique<Retained>(shape_.memory);
  result->stage = retained_stage();
  const auto found = std::find_if(outgoing_.begin(), outgoing_.end(), [&](const auto& message) {
    return message->stage() == result->stage;
  });
  const SentPiece& piece = (*found)->pieces[0];
  result->bytes.assign(piece.data, piece.data + (*found)->bytes[0]);
  result->contributors.assign(piece.slots.count,
                              chunks_[piece.piece.chunk].contributors[piece.piece.version]);
  return result;
}

}  // namespace tarpon
