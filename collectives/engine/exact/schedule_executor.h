// Runs a Schedule of one exact call: the messages of its stages at the endpoint, and which slots
// may be sent as pieces arrive.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/engine/exact/chunk_sums.h"
#include "collectives/engine/schedules/schedule.h"
#include "transport/endpoint.h"

namespace tarpon {

class ScheduleExecutor {
 public:
  struct Shape {
    ChunkSums::Shape chunks;
    /// Ranks that have to make the same call although they send nothing here. Bit r: rank r.
    std::uint64_t others = 0;
    /// If messages may be kept or confirmed, pieces of up to this many bytes are only kept.
    std::uint64_t confirm_above = 0;
  };

  /// Throws std::bad_alloc.
  ScheduleExecutor(Schedule schedule, const Shape& shape);
  ~ScheduleExecutor();
  ScheduleExecutor(const ScheduleExecutor&) = delete;
  ScheduleExecutor& operator=(const ScheduleExecutor&) = delete;

  /// Returns the stages of the operation. The executor owns the sources and sinks, so it outlives
  /// the operation. A stage is acknowledged if the schedule says that it is confirmed, except a
  /// kept stage whose pieces are small on all ranks.
  std::vector<StageSpec> stages();

  /// As those of ChunkSums, if ChunkSums::Shape::provided.
  void provide(std::uint32_t chunk, std::uint64_t elements) { chunks_.provide(chunk, elements); }
  std::uint64_t results(std::uint32_t chunk) { return chunks_.results(chunk); }

  /// Tells the endpoint which slots may go out after the latest deliveries.
  void advance(Endpoint& endpoint, OperationHandle operation);

  /// Payload of the messages that this rank sends.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

  /// The stage whose piece may be kept for peers that still ask for it once this rank has its
  /// result; kNoStage: none. Alike on all ranks. The result proves that peers have received the
  /// earlier stages.
  static constexpr std::uint8_t kNoStage = 0xff;
  std::uint8_t kept_stage() const { return kept_stage_; }
  /// The ranks that get the kept piece. Bit r: rank r. REQUIRES: kept_stage() != kNoStage.
  std::uint64_t kept_receivers() const;
  /// Whether receivers confirm the pieces of that stage, because a copy costs more.
  bool confirms_kept() const { return confirms_kept_; }
  /// Size of the kept piece, and a copy of some of its slots. REQUIRES: kept_stage() != kNoStage.
  std::uint64_t kept_bytes() const;
  std::uint32_t kept_slots() const;
  void copy_kept(std::uint32_t first, std::uint32_t count, Retained& to) const;

 private:
  class Outgoing;
  class Incoming;

  /// The slots of a piece within its message.
  struct SlotRun {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::uint32_t end() const { return first + count; }
  };

  void lay_out(const std::vector<Schedule::Message>& messages);
  void choose_kept_stage();
  std::uint32_t piece_at(const Schedule::Message& message, std::uint32_t slot) const;
  const Schedule::Piece* kept_piece() const;

  const Schedule schedule_;
  const Shape shape_;
  ChunkSums chunks_;
  std::vector<SlotRun> slots_;             // of each piece
  std::vector<const std::byte*> sources_;  // of each piece that is sent
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::uint64_t bytes_sent_ = 0;
  std::uint8_t kept_stage_ = kNoStage;
  bool confirms_kept_ = false;
};

}  // namespace tarpon
