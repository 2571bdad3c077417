// The flight recorder: the last events of one rank's protocol, always on.
//
// A fixed ring of small records. One thread at a time writes; any thread reads meanwhile, also a
// signal handler, without stopping the writer: a reader skips a record that is being overwritten.
// No allocation after construction, no clock: the writer passes the time in each record. An event
// costs a few nanoseconds (tests/transport/recorder_test prints how many).
//
// DATA packets are not events: an operation leaves a few dozen records, so the ring holds the last
// hundred or so operations of a small job.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

/// When a kind is added: record_kind_name(), and kFlightVersion (collectives/flight/file.h).
enum class RecordKind : std::uint8_t {
  none,
  submitted,     // the caller's arguments, as collectives/engine/flight_events.h packs them
  opened,        // value: hash of the signature
  first_packet,  // of `peer` in this operation
  stage_closed,  // detail: Closing
  acknowledged,  // every message of the stage is confirmed
  repair_out,    // to `peer`; value: how many in a row without an answer, powers of two only
  repair_in,     // from `peer`; value: how many in a row, powers of two only
  credit,        // given to `peer`; value: slots. The first and the last of a message
  ready_out,     // value: how often sent before; 0 and powers of two only
  ready_in,
  closed_out,  // the operation is over here; mask: ranks of which nothing came
  closed_in,
  abort_out,  // detail: tarpon_abort_reason; mask: the ranks that the packet names
  abort_in,
  mismatch,   // `peer` runs another operation under this number
  late,       // `peer` has closed without this rank
  deadline,   // passed
  ended,      // detail: Status of the call; mask: ranks that it names
  epoch,      // value: the later epoch that `peer` runs it in
  nonfinite,  // an input held NaN or infinity; mask: the ranks that gave it (0: not known)
  lacked,     // at the end of a call: data of `peer` is missing. stage: bit i: of stage i; value:
              // microseconds since a packet of the peer came, all ones: never; detail: percent here
  // About the rank, not about one operation: tag and operation are 0.
  pause,         // nothing drove running calls for `value` microseconds, of them `extra` after the
                 // time at which the driver had to wake; the record's time is the end
  silence,       // `peer` no longer answers (value 1), or is heard again (value 0)
  standing,      // `peer`, or the rank itself, is no longer live; detail: Standing
  port_failed,   // no packet comes or goes any more
  send_refused,  // the kernel refused `value` packets since the last such record; detail: errno
  count
};

std::string_view record_kind_name(RecordKind kind);

/// Whether records of `kind` belong to the rank as a whole and not to an operation.
constexpr bool is_rank_wide(RecordKind kind) {
  return kind >= RecordKind::pause && kind < RecordKind::count;
}

inline constexpr std::uint8_t kNoPeer = 0xff;

struct Record {
  Time time{};
  RecordKind kind = RecordKind::none;
  std::uint8_t stage = 0;
  std::uint8_t peer = kNoPeer;
  std::uint8_t detail = 0;
  std::uint32_t tag = 0;
  std::uint32_t operation = 0;
  std::uint32_t value = 0;
  std::uint32_t extra = 0;
  std::uint64_t number = 0;  // of the event, from 0; set by write()

  /// For kinds with a mask: value holds ranks 0 to 31, extra the rest.
  std::uint64_t mask() const { return value | std::uint64_t{extra} << 32; }
  void set_mask(std::uint64_t ranks) {
    value = static_cast<std::uint32_t>(ranks);
    extra = static_cast<std::uint32_t>(ranks >> 32);
  }
};

/// A record as it lies in the ring and in files: four words, little-endian.
///   0  time, nanoseconds    1  tag, operation
///   2  kind, stage, peer, detail, value    3  number + 1 cut to 32 bits (0: no record), extra
using RecordWords = std::array<std::uint64_t, 4>;

inline RecordWords pack(const Record& record) {
  return {static_cast<std::uint64_t>(record.time.time_since_epoch().count()),
          record.tag | std::uint64_t{record.operation} << 32,
          static_cast<std::uint64_t>(record.kind) | std::uint64_t{record.stage} << 8 |
              std::uint64_t{record.peer} << 16 | std::uint64_t{record.detail} << 24 |
              std::uint64_t{record.value} << 32,
          std::uint64_t{record.extra} << 32};
}

/// Decodes `words`. `written`: the number of events written when the words were read; it completes
/// the record's number. REQUIRES: the words hold a record.
Record unpack(const RecordWords& words, std::uint64_t written);

class Recorder {
 public:
  static constexpr std::uint32_t kCapacity = 4096;  // a power of two: 128 KiB

  Recorder() : cells_(std::make_unique<Cell[]>(kCapacity)) {}

  /// One thread at a time.
  void write(const Record& record) noexcept {
    const std::uint64_t number = written_.load(std::memory_order_relaxed);
    Cell& cell = cells_[number % kCapacity];
    RecordWords words = pack(record);
    words[3] |= static_cast<std::uint32_t>(number + 1);
    // A reader that sees a new word also sees the cell marked as empty, or whole again.
    cell[3].store(0, std::memory_order_relaxed);
    for (std::size_t i = 0; i < 3; ++i) cell[i].store(words[i], std::memory_order_release);
    cell[3].store(words[3], std::memory_order_release);
    written_.store(number + 1, std::memory_order_release);
  }

  /// Events so far. Any thread.
  std::uint64_t written() const noexcept { return written_.load(std::memory_order_acquire); }

  /// Reads the words of event `number`; false when it is overwritten or not there yet. Any thread,
  /// and safe in a signal handler.
  bool read(std::uint64_t number, RecordWords& words) const noexcept {
    const Cell& cell = cells_[number % kCapacity];
    words[3] = cell[3].load(std::memory_order_acquire);
    if (static_cast<std::uint32_t>(words[3]) != static_cast<std::uint32_t>(number + 1)) {
      return false;
    }
    for (std::size_t i = 0; i < 3; ++i) words[i] = cell[i].load(std::memory_order_acquire);
    return cell[3].load(std::memory_order_relaxed) == words[3] &&
           static_cast<std::uint32_t>(words[3]) != 0;
  }

  /// The oldest event that may still be read.
  std::uint64_t first() const noexcept {
    const std::uint64_t end = written();
    return end > kCapacity ? end - kCapacity : 0;
  }

  /// Notes that something happened that is worth keeping the ring for. One thread at a time;
  /// incidents() may be called from any thread.
  void note_incident() noexcept { incidents_.fetch_add(1, std::memory_order_release); }
  std::uint32_t incidents() const noexcept { return incidents_.load(std::memory_order_acquire); }

 private:
  using Cell = std::array<std::atomic<std::uint64_t>, 4>;
  static_assert(sizeof(Cell) == 32);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  std::unique_ptr<Cell[]> cells_;
  std::atomic<std::uint64_t> written_ = 0;
  std::atomic<std::uint32_t> incidents_ = 0;
};

}  // namespace tarpon
