// The chunks of one exact call at one rank: adds up pieces as they arrive, and tells which pieces
// may be sent.
//
// Works cell by cell. A cell has as many elements of a chunk as fit in one slot; if partial results
// are sent, as many of these. A cell goes through the versions of its chunk. Data that arrives
// before the version that it is added to is parked. A version that is sent and then added to is
// stored unchanged. Parked and stored cells are parts of exact messages, whose receivers ask for
// them until they have them.
//
// Memory, apart from partial results:
// - for parked cells, the bytes of all pieces that are not the first addition to their chunk: for
//   TAR (world - 2) / world of the bucket. Only as much of it is touched as was parked at once;
// - for stored versions: none for TAR, circulant and ring, the bucket for one-shot in place, one
//   bucket a round for recursive doubling. For late-rank the bucket at the late rank in place, and
//   1 / (world - 1) of it at the others. A version that lies in the output is copied before the
//   call begins.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/engine/exact/parked_cells.h"
#include "collectives/engine/exact/sums.h"
#include "collectives/engine/exact/version_store.h"
#include "collectives/engine/schedules/schedule.h"
#include "transport/operation_spec.h"
#include "transport/rank.h"

namespace tarpon {

/// Pieces are named by their numbers in the schedule. Not thread-safe.
class ChunkSums {
 public:
  struct Shape {
    const std::byte* input = nullptr;  // what this rank contributes; may be the output
    std::uint64_t contributors = 0;    // to the input: bit r: it contains rank r's data
    /// The input comes bit by bit, by provide(); else it is there from the begin.
    bool provided = false;
    Sums::Shape sums;
    std::uint32_t slot_bytes = 0;
    FloatBufferPool* buffers = nullptr;  // for parked and stored cells; outlives it
  };

  /// Number of partial results of a schedule, which is the number of places of Sums.
  static std::uint64_t partial_results(const Schedule& schedule);

  /// `schedule` outlives it. Throws std::bad_alloc.
  ChunkSums(const Schedule& schedule, const Shape& shape);

  /// Bytes of a piece in packets.
  std::uint64_t bytes_of(const Schedule::Piece& piece) const;

  /// Where all of a piece that is sent lies.
  const std::byte* source_of(const Schedule::Piece& piece) const;
  /// Whether a slot of a piece that is sent has reached its version, and may be read.
  bool holds(const Schedule::Piece& piece, std::uint32_t slot) const;
  /// Slots at the begin of a piece of version 0 that may be read.
  std::uint32_t provided_slots(const Schedule::Piece& piece) const;
  /// How many elements of a chunk, from its begin on, have their results.
  std::uint64_t results(std::uint32_t chunk);
  /// Ranks whose contributions are in a piece that is sent. Bit r: rank r.
  std::uint64_t contributors(const Schedule::Piece& piece) const {
    return contributors_[chunks_[piece.chunk].version + piece.version];
  }

  /// The first `elements` elements of this rank's contribution to a chunk are there. REQUIRES: no
  /// fewer than before.
  void provide(std::uint32_t chunk, std::uint64_t elements);

  /// Takes slots of a received piece. `run` counts the slots from the beginning of the piece.
  void deliver(std::uint32_t piece, const IncomingRun& run);

 private:
  /// Where the cells and versions of a chunk are.
  struct Cells {
    std::uint32_t first = 0;  // index of its first cell in versions_
    std::uint32_t count = 0;
    std::uint32_t version = 0;   // index of its first version in contributors_
    std::uint32_t addition = 0;  // index of its first addition in additions_
    std::uint64_t place = 0;     // of its first partial result
    std::uint32_t provided = 0;  // cells of this rank's contribution that are there
    std::uint32_t results = 0;   // cells whose results results() has seen
  };
  /// A received piece, by its number in the schedule.
  struct Received {
    std::uint64_t contributors = 0;      // as its packets say
    std::uint32_t first_parked = kNone;  // its first cell in parked_; kNone: none may be early
  };

  static constexpr std::uint32_t kNone = 0xffffffff;

  void lay_out_cells();
  void store_own();
  void expect_received();
  const std::byte* own(std::uint32_t chunk, std::uint64_t first) const;
  Range elements_of(std::uint32_t chunk, std::uint32_t cell) const;
  void take_results(const Schedule::Piece& piece, std::uint32_t cell,
                    std::span<const std::byte> data);
  void take(std::uint32_t piece, std::uint32_t cell, std::span<const std::byte> data);
  void add_parked(std::uint32_t chunk, std::uint32_t cell);
  void add(std::uint32_t piece, std::uint32_t cell, const std::byte* data);
  void store(std::uint32_t chunk, std::uint32_t cell, std::uint32_t version);

  const Schedule& schedule_;
  const Shape shape_;
  Sums sums_;
  const std::uint64_t cell_elements_;
  const std::array<std::uint32_t, 2> cells_a_slot_;  // of elements, of partial results
  std::vector<Cells> chunks_;
  std::vector<std::uint8_t> versions_;       // of each cell
  std::vector<std::uint64_t> contributors_;  // of each version of each chunk
  std::vector<std::uint32_t> additions_;     // the piece of each addition of each chunk
  std::vector<Received> received_;
  VersionStore stored_;
  ParkedCells parked_;
};

}  // namespace tarpon
