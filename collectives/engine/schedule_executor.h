// Runs a Schedule of one exact call: the messages of its stages at the endpoint, additions as
// pieces arrive, and what may be sent on.
//
// Works cell by cell: the elements of a chunk that one slot of partial results holds. A cell goes
// through the versions of its chunk. A piece that arrives before the version that it is added to
// waits in memory set aside for it. A version that is still to be sent when the next one takes its
// place is kept as it was. Both hold for the messages of exact calls, which their receivers ask
// for until they have them.
//
// Memory, apart from partial results: what may come early, at most what is received to be added;
// what is kept, which circulant needs none of and one-shot the bucket once, in place.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <vector>

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
    std::pmr::memory_resource* memory = std::pmr::new_delete_resource();  // outlives it
  };

  /// Throws std::bad_alloc.
  ScheduleExecutor(Schedule schedule, const Shape& shape);
  ~ScheduleExecutor();
  ScheduleExecutor(const ScheduleExecutor&) = delete;
  ScheduleExecutor& operator=(const ScheduleExecutor&) = delete;

  /// The stages of the operation. Sources and sinks are the executor's: it outlives the operation,
  /// and stays where it is. A stage is acknowledged where the schedule says so and its messages
  /// have more than `confirm_above` bytes, or cannot be retained().
  std::vector<StageSpec> stages(std::uint64_t confirm_above);

  /// What has been added since lets these slots go out.
  void advance(Endpoint& endpoint, OperationHandle operation);

  /// Payload of the messages that this rank sends.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

  /// The stage whose messages peers may still ask for once this rank has its result, if all of them
  /// are one and the same piece; kNoStage: none.
  static constexpr std::uint8_t kNoStage = 0xff;
  std::uint8_t retained_stage() const;
  /// A copy of it. REQUIRES: retained_stage() != kNoStage. Throws std::bad_alloc.
  std::unique_ptr<Retained> retained() const;

 private:
  class Outgoing;
  class Incoming;
  struct SentPiece;
  struct ReceivedPiece;
  struct Cells;
  struct Kept;

  void lay_out_cells();
  void keep_sent();
  void lay_out_messages();
  const Kept* find_kept(std::uint32_t chunk, std::uint32_t version) const;
  const std::byte* source_of(const Schedule::Piece& piece) const;
  const std::byte* own(std::uint32_t chunk, std::uint64_t first) const;
  Range elements_of(std::uint32_t chunk, std::uint32_t cell) const;
  bool holds(const SentPiece& one, std::uint32_t slot) const;

  void deliver(ReceivedPiece& piece, std::uint32_t slot, std::span<const std::byte> payload);
  void take(ReceivedPiece& piece, std::uint32_t cell, std::span<const std::byte> data);
  void add(const ReceivedPiece& piece, std::uint32_t cell, const std::byte* data);
  void keep(std::uint32_t chunk, std::uint32_t cell, std::uint32_t version);

  const Schedule schedule_;
  const Shape shape_;
  const Sums sums_;
  const std::uint64_t cell_elements_;
  std::vector<Cells> chunks_;
  std::vector<std::uint8_t> versions_;  // of each cell
  std::vector<Kept> kept_;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace tarpon
