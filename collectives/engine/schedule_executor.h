// Runs a Schedule of one exact call: the messages of its stages at the endpoint, additions as
// pieces arrive, and what may be sent on.
//
// Works cell by cell. A cell is the elements of a chunk that one slot holds; of partial results,
// where these are sent. A cell goes through the versions of its chunk. What arrives before the
// version that it is added to is parked. A version that is still to be sent when the next one takes
// its place is kept as it was. Parked and kept cells are parts of exact messages, whose receivers
// ask for them until they have them.
//
// Memory, apart from partial results:
// - for parked cells, the bytes of all pieces that are added later than first: of TAR (world - 2) /
//   world of the bucket. Only as much of it is touched as was parked at once;
// - for kept versions: none for TAR, circulant and ring, the bucket for one-shot in place, one
//   bucket a round for recursive doubling. Of late-rank the bucket at the late rank in place, and
//   1 / (world - 1) of it at the others. What lies in the output is copied before the call begins.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine/parked_cells.h"
#include "collectives/engine/schedules/schedule.h"
#include "collectives/engine/sums.h"
#include "transport/endpoint.h"

namespace tarpon {

class ScheduleExecutor {
 public:
  struct Shape {
    Rank rank = 0;
    const std::byte* input = nullptr;  // of the caller; may be the output
    Sums::Shape sums;
    std::uint32_t slot_bytes = 0;
    /// Where messages may be kept or confirmed: pieces of up to so many bytes are only kept.
    std::uint64_t confirm_above = 0;
    FloatBufferPool* buffers = nullptr;  // for parked and kept cells; outlives it
  };

  /// How many partial results a schedule has: the places of Sums.
  static std::uint64_t partial_results(const Schedule& schedule);

  /// Throws std::bad_alloc.
  ScheduleExecutor(Schedule schedule, const Shape& shape);
  ~ScheduleExecutor();
  ScheduleExecutor(const ScheduleExecutor&) = delete;
  ScheduleExecutor& operator=(const ScheduleExecutor&) = delete;

  /// The stages of the operation. Sources and sinks are the executor's: it outlives the operation.
  /// A stage is acknowledged where the schedule says that it is confirmed, but for a kept stage
  /// whose pieces are small on all ranks.
  std::vector<StageSpec> stages();

  /// Tells the endpoint which slots may go out after the latest deliveries.
  void advance(Endpoint& endpoint, OperationHandle operation);

  /// Payload of the messages that this rank sends.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

  /// The stage whose piece may be kept for peers that still ask for it once this rank has its
  /// result, alike on all ranks; kNoStage: none. The result tells that peers have received the
  /// stages before.
  static constexpr std::uint8_t kNoStage = 0xff;
  std::uint8_t kept_stage() const { return kept_stage_; }
  /// Whether receivers confirm the pieces of that stage, because a copy costs more.
  bool confirms_kept() const { return confirms_kept_; }
  /// The piece: its size, and a copy of some of its slots. REQUIRES: kept_stage() != kNoStage.
  std::uint64_t kept_bytes() const;
  std::uint32_t kept_slots() const;
  void copy_kept(std::uint32_t first, std::uint32_t count, Retained& to) const;

 private:
  class Outgoing;
  class Incoming;
  struct SentPiece;
  struct ReceivedPiece;
  struct Cells;
  struct Kept;

  static constexpr std::uint32_t kNone = 0xffffffff;

  void lay_out_cells();
  void keep_sent();
  void find_kept_pieces();
  template <typename Each, typename Made>
  void each_message(std::vector<Schedule::Message> Schedule::Stage::*of, Each each, Made made);
  void lay_out_sends();
  void lay_out_receives();
  void choose_kept_stage();
  const SentPiece* kept_piece() const;
  const Kept* find_kept(std::uint32_t chunk, std::uint32_t version) const;
  const std::byte* source_of(const Schedule::Piece& piece) const;
  const std::byte* own(std::uint32_t chunk, std::uint64_t first) const;
  std::uint64_t bytes_of(const Schedule::Piece& piece) const;
  Range elements_of(std::uint32_t chunk, std::uint32_t cell) const;
  bool holds(const SentPiece& one, std::uint32_t slot) const;

  void deliver(ReceivedPiece& piece, std::uint32_t slot, std::span<const std::byte> payload);
  void take(ReceivedPiece& piece, std::uint32_t cell, std::span<const std::byte> data);
  void add(const ReceivedPiece& piece, std::uint32_t cell, const std::byte* data);
  void keep(std::uint32_t chunk, std::uint32_t cell, std::uint32_t version);

  const Schedule schedule_;
  const Shape shape_;
  Sums sums_;
  const std::uint64_t cell_elements_;
  std::vector<Cells> chunks_;
  std::vector<std::uint8_t> versions_;       // of each cell
  std::vector<std::uint64_t> contributors_;  // of each version of each chunk
  std::vector<std::uint32_t> additions_;     // of each addition of each chunk: in received_
  std::vector<Kept> kept_;                   // by chunk and version
  std::optional<FloatBufferPool::Buffer> kept_memory_;
  std::vector<SentPiece> sent_;  // as in the schedule
  std::vector<ReceivedPiece> received_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  ParkedCells parked_;
  std::uint64_t bytes_sent_ = 0;
  std::uint8_t kept_stage_ = kNoStage;
  bool confirms_kept_ = false;
};

}  // namespace tarpon
