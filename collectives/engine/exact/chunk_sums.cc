#include "collectives/engine/exact/chunk_sums.h"

#include <algorithm>
#include <cstring>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

/// Version of a cell whose result came without the sums before it. Above all other versions.
constexpr std::uint8_t kSkipped = 0xff;

/// Whether a piece of partial results is sent.
bool travels_partial(const Schedule& schedule) {
  return std::any_of(schedule.pieces.begin(), schedule.pieces.end(),
                     [](const Schedule::Piece& piece) { return piece.partial; });
}

}  // namespace

ChunkSums::ChunkSums(const Schedule& schedule, const Shape& shape)
    : schedule_(schedule),
      shape_(shape),
      sums_(shape.sums),
      cell_elements_(shape.slot_bytes / sums_.width(travels_partial(schedule))),
      cells_a_slot_{
          static_cast<std::uint32_t>(shape.slot_bytes / sums_.width(false) / cell_elements_),
          static_cast<std::uint32_t>(shape.slot_bytes / sums_.width(true) / cell_elements_)},
      stored_(*shape.buffers),
      parked_(*shape.buffers) {
  lay_out_cells();
  store_own();
  expect_received();
}

std::uint64_t ChunkSums::partial_results(const Schedule& schedule) {
  std::uint64_t count = 0;
  for (const Schedule::Chunk& chunk : schedule.chunks) {
    if (chunk.additions > 0) count += chunk.elements.count;
  }
  return count;
}

void ChunkSums::lay_out_cells() {
  Cells next;
  chunks_.reserve(schedule_.chunks.size());
  for (const Schedule::Chunk& chunk : schedule_.chunks) {
    const std::uint64_t count = (chunk.elements.count + cell_elements_ - 1) / cell_elements_;
    next.count = static_cast<std::uint32_t>(count);
    next.provided = shape_.provided ? 0 : next.count;
    chunks_.push_back(next);
    next.first += next.count;
    next.version += chunk.last_version() + 1;
    next.addition += chunk.additions;
    if (chunk.additions > 0) next.place += chunk.elements.count;
  }
  versions_.assign(next.first, 0);
  contributors_.assign(next.version, shape_.contributors);
  additions_.assign(next.addition, kNone);
}

/// Reserves memory for the versions that are sent and then added to. The rank's own contribution is
/// one of them if it lies in the output; it is copied here.
void ChunkSums::store_own() {
  const bool in_place = shape_.input == shape_.sums.output;
  for (const Schedule::Stage& stage : schedule_.stages) {
    for (const Schedule::Message& message : stage.sends) {
      for (const Schedule::Piece& piece : schedule_.pieces_of(message)) {
        const Schedule::Chunk& chunk = schedule_.chunks[piece.chunk];
        const bool changes = (piece.version < chunk.additions && (piece.version > 0 || in_place)) ||
                             (chunk.overwritten && in_place);
        if (!changes) continue;
        stored_.expect(piece.chunk, piece.version, sums_.width(piece.partial), bytes_of(piece));
      }
    }
  }
  stored_.allocate();
  for (const VersionStore::Stored& one : stored_.all()) {
    if (one.version > 0) continue;
    const std::uint64_t first = schedule_.chunks[one.chunk].elements.first;
    std::memcpy(one.bytes, shape_.input + first * one.width, one.size);
  }
}

/// Notes which piece makes which version, and which cells may come early.
void ChunkSums::expect_received() {
  received_.resize(schedule_.pieces.size());
  std::size_t widest = 0;  // bytes of an element that may be parked
  for (const Schedule::Stage& stage : schedule_.stages) {
    for (const Schedule::Message& message : stage.receives) {
      const std::uint32_t end = message.first_piece + message.piece_count;
      for (std::uint32_t number = message.first_piece; number < end; ++number) {
        const Schedule::Piece& piece = schedule_.pieces[number];
        if (piece.version > schedule_.chunks[piece.chunk].additions) continue;
        const Cells& cells = chunks_[piece.chunk];
        additions_[cells.addition + piece.version - 1] = number;
        if (piece.version == 1 && !shape_.provided) continue;
        received_[number].first_parked = parked_.expect(cells.count);
        widest = std::max(widest, sums_.width(piece.partial));
      }
    }
  }
  parked_.allocate(cell_elements_ * widest);
}

std::uint64_t ChunkSums::bytes_of(const Schedule::Piece& piece) const {
  return schedule_.chunks[piece.chunk].elements.count * sums_.width(piece.partial);
}

const std::byte* ChunkSums::source_of(const Schedule::Piece& piece) const {
  const Schedule::Chunk& chunk = schedule_.chunks[piece.chunk];
  if (const auto* const stored = stored_.find(piece.chunk, piece.version)) return stored->bytes;
  if (piece.version == 0) return shape_.input + chunk.elements.first * sums_.width(false);
  return piece.partial ? sums_.partial(chunk.elements.first, chunks_[piece.chunk].place)
                       : sums_.result(chunk.elements.first);
}

bool ChunkSums::holds(const Schedule::Piece& piece, std::uint32_t slot) const {
  const Cells& chunk = chunks_[piece.chunk];
  const std::uint32_t cells = cells_a_slot_[piece.partial ? 1 : 0];
  const std::uint32_t first = slot * cells;
  const std::uint32_t end = std::min(first + cells, chunk.count);
  const bool sum = piece.version <= schedule_.chunks[piece.chunk].additions;
  return std::all_of(versions_.begin() + chunk.first + first, versions_.begin() + chunk.first + end,
                     [&](std::uint8_t version) {
                       return version >= piece.version && !(sum && version == kSkipped);
                     });
}

std::uint32_t ChunkSums::provided_slots(const Schedule::Piece& piece) const {
  const Cells& chunk = chunks_[piece.chunk];
  const std::uint32_t cells = cells_a_slot_[piece.partial ? 1 : 0];
  return (chunk.provided + (chunk.provided == chunk.count ? cells - 1 : 0)) / cells;
}

std::uint64_t ChunkSums::results(std::uint32_t chunk) {
  Cells& cells = chunks_[chunk];
  const std::uint32_t last = schedule_.chunks[chunk].last_version();
  while (cells.results < cells.count && versions_[cells.first + cells.results] >= last) {
    ++cells.results;
  }
  return std::min(cells.results * cell_elements_, schedule_.chunks[chunk].elements.count);
}

Range ChunkSums::elements_of(std::uint32_t chunk, std::uint32_t cell) const {
  const Range all = schedule_.chunks[chunk].elements;
  const std::uint64_t first = cell * cell_elements_;
  return {all.first + first, std::min(cell_elements_, all.count - first)};
}

void ChunkSums::deliver(std::uint32_t piece, const IncomingRun& run) {
  const Schedule::Piece& one = schedule_.pieces[piece];
  const bool results = one.version > schedule_.chunks[one.chunk].additions;
  received_[piece].contributors = run.contributors;
  const std::size_t step = cell_elements_ * sums_.width(one.partial);
  std::uint32_t cell = run.first * cells_a_slot_[one.partial ? 1 : 0];
  for (std::size_t i = 0; i < run.packets.size(); ++i) {
    const std::span<const std::byte> payload = run.payload(i);
    if (results) {
      take_results(one, cell, payload);
      cell += cells_a_slot_[0];
      continue;
    }
    for (std::size_t at = 0; at < payload.size(); at += step, ++cell) {
      take(piece, cell, payload.subspan(at, std::min(step, payload.size() - at)));
    }
  }
  if (results) contributors_[chunks_[one.chunk].version + one.version] = run.contributors;
}

/// Takes the results of a slot, whose first cell is `cell`.
void ChunkSums::take_results(const Schedule::Piece& piece, std::uint32_t cell,
                             std::span<const std::byte> data) {
  const Cells& chunk = chunks_[piece.chunk];
  if (cell >= chunk.provided) return;  // no result can hold what is not there
  std::memcpy(sums_.result(elements_of(piece.chunk, cell).first), data.data(), data.size());
  // A result holds all sums of this rank, so these were made before. The exception is a rank that
  // was restarted: packets that its predecessor asked for may bring a result first.
  const std::uint32_t end = std::min(cell + cells_a_slot_[0], chunk.count);
  for (; cell < end; ++cell) {
    std::uint8_t& version = versions_[chunk.first + cell];
    const bool skips = version + 1u != piece.version;
    version = skips ? kSkipped : static_cast<std::uint8_t>(piece.version);
  }
}

/// Takes one cell of a piece that has arrived.
void ChunkSums::take(std::uint32_t piece, std::uint32_t cell, std::span<const std::byte> data) {
  const Schedule::Piece& one = schedule_.pieces[piece];
  const Cells& chunk = chunks_[one.chunk];
  const std::uint8_t version = versions_[chunk.first + cell];
  if (version == kSkipped) return;
  if (version + 1u != one.version || cell >= chunk.provided) {
    return parked_.park(received_[piece].first_parked + cell, data);
  }
  add(piece, cell, data.data());
  add_parked(one.chunk, cell);
}

void ChunkSums::provide(std::uint32_t chunk, std::uint64_t elements) {
  Cells& cells = chunks_[chunk];
  const bool all = elements == schedule_.chunks[chunk].elements.count;
  const auto there = all ? cells.count : static_cast<std::uint32_t>(elements / cell_elements_);
  for (; cells.provided < there;) add_parked(chunk, cells.provided++);
}

/// Adds the cells that came before the version that they are added to.
void ChunkSums::add_parked(std::uint32_t of, std::uint32_t cell) {
  const Cells& chunk = chunks_[of];
  const std::uint32_t additions = schedule_.chunks[of].additions;
  std::uint8_t& version = versions_[chunk.first + cell];
  while (version < additions) {
    const std::uint32_t next = additions_[chunk.addition + version];
    if (next == kNone || received_[next].first_parked == kNone) return;
    const std::uint32_t early = received_[next].first_parked + cell;
    if (!parked_.holds(early)) return;
    add(next, cell, parked_.take(early));
  }
}

/// Makes the version of `piece`. REQUIRES: the cell has the version before it.
void ChunkSums::add(std::uint32_t piece, std::uint32_t cell, const std::byte* data) {
  const Schedule::Piece& one = schedule_.pieces[piece];
  const Schedule::Chunk& chunk = schedule_.chunks[one.chunk];
  const Cells& cells = chunks_[one.chunk];
  const Range range = elements_of(one.chunk, cell);
  const std::uint32_t version = one.version;
  const bool has_partials = sums_.width(true) != sums_.width(false);
  const bool own_now = chunk.own_turn == version;
  const bool last = version == chunk.additions && !chunk.stored;
  const Sums::Operand addend{data, one.partial && has_partials};
  const Sums::Operand own{this->own(one.chunk, range.first), false};
  const Sums::Operand alone{sums_.result(range.first), false};  // one contribution is an element
  const std::uint64_t place = cells.place + cell * cell_elements_;
  const Sums::Operand sum{sums_.partial(range.first, place), has_partials};
  const bool begins = version == 1 && chunk.own_turn > 0;
  std::uint64_t* const contributors = contributors_.data() + cells.version;
  contributors[version] = received_[piece].contributors;
  if (begins) {
    std::memcpy(sums_.result(range.first), data, range.count * sums_.width(one.partial));
  } else {
    contributors[version] |= contributors[version - 1];
    const bool is_alone = version == 2 && chunk.own_turn > 1;
    const Sums::Operand before = version == 1 ? own : is_alone ? alone : sum;
    if (one.left) {
      sums_.add(range, place, addend, before, last && !own_now);
    } else {
      sums_.add(range, place, before, addend, last && !own_now);
    }
  }
  if (own_now) {
    contributors[version] |= shape_.contributors;
    sums_.add(range, place, begins ? alone : sum, own, last);
  }
  versions_[cells.first + cell] = static_cast<std::uint8_t>(version);
  store(one.chunk, cell, version);
}

/// Copies a version that was made, if it is sent and then added to.
void ChunkSums::store(std::uint32_t chunk, std::uint32_t cell, std::uint32_t version) {
  const auto* const stored = stored_.find(chunk, version);
  if (stored == nullptr) return;
  const Range range = elements_of(chunk, cell);
  const std::uint64_t place = chunks_[chunk].place + cell * cell_elements_;
  std::memcpy(stored->bytes + cell * cell_elements_ * stored->width,
              sums_.partial(range.first, place), range.count * stored->width);
}

const std::byte* ChunkSums::own(std::uint32_t chunk, std::uint64_t first) const {
  if (const auto* const stored = stored_.find(chunk, 0)) {
    return stored->bytes + (first - schedule_.chunks[chunk].elements.first) * stored->width;
  }
  return shape_.input + first * sums_.width(false);
}

}  // namespace tarpon
