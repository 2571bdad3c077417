// Packets of operations that this rank has not begun: kept within limits until it begins them.
//
// DATA is copied into a fixed number of cells; of READY and ABORT the contents are kept. Packets
// that are dropped for want of room are asked for again once the operation begins: EarlyOperation
// says for each peer whether a packet was dropped, and take_refused() says it for operations that
// found no room at all.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bpf/wire.h"
#include "transport/endpoint.h"
#include "transport/tags/parking.h"

namespace tarpon {

/// What this rank has received of an operation that it has not begun.
struct EarlyOperation {
  struct FromPeer {
    bool announced = false;     // by READY: the fields below, up to `grants`, are set
    std::uint32_t readies = 0;  // READYs that it has repeated
    CallTerms terms{};
    Marks marks;
    std::uint16_t epoch = 0;
    Signature signature{};
    std::array<std::uint32_t, TARPON_MAX_STAGES> grants{};
    bool aborted = false;
    std::uint32_t abort_reason = 0;
    std::uint64_t abort_ranks = 0;
    Time begun = kNever;       // when its operation began; kNever: no packet had an echo
    Time read = kNever;        // when its first packet was read
    std::uint32_t parked = 0;  // packets in `cells`
    bool overrun = false;      // a packet was dropped for want of room
  };
  std::uint32_t tag = 0;
  std::uint32_t number = 0;
  Time since{};
  std::vector<FromPeer> peers;
  std::vector<std::uint32_t> cells;  // in the order in which their packets came
};

class EarlyPackets {
 public:
  /// An operation that has waited this long makes room for others: this rank may never begin it.
  static constexpr Duration kStale = 10s;

  struct Limits {
    std::uint32_t world_size = 0;
    std::uint32_t operations = 0;
    std::uint32_t packets_per_peer = 0;  // of one operation
    std::size_t cells = 0;
    std::size_t cell_bytes = 0;
  };
  explicit EarlyPackets(const Limits& limits);

  enum class Parked : std::uint8_t {
    yes,
    aborted,  // its sender has given the operation up: it will not run
    no_room,
  };
  /// Copies a packet of DATA. `begun`: when the operation began at its sender; kNever: unknown.
  Parked park(const tarpon_header& header, std::span<const std::byte> packet, Time begun, Time now);
  /// Returns what `peer` has said about the operation, for the caller to complete; nullptr: no
  /// room. Valid until the next call of another member.
  EarlyOperation::FromPeer* from(std::uint32_t tag, std::uint32_t number, Rank peer, Time now);
  /// Notes that `peer` gives the operation up; `ranks`: the ranks to blame. False: no room.
  bool abort(std::uint32_t tag, std::uint32_t number, Rank peer, std::uint32_t reason,
             std::uint64_t ranks, Time now);
  /// Notes that a packet of the operation was dropped.
  void refuse(std::uint32_t tag, std::uint32_t number);

  bool has(std::uint32_t tag) const;
  /// The operations of tags from `first` on, as {tag, number}.
  std::vector<NextNumber> of_tags_from(std::uint32_t first) const;
  /// Whether `peer` has said that its deadline passed before it could begin.
  bool has_expired(std::uint32_t tag, std::uint32_t number, Rank peer) const;

  /// Removes the operation, which begins now, and returns it. The caller releases its cells.
  std::optional<EarlyOperation> take(std::uint32_t tag, std::uint32_t number);
  /// Whether packets of the operation were dropped that take() does not know about. True only once.
  bool take_refused(std::uint32_t tag, std::uint32_t number);
  std::span<const std::byte> packet(std::uint32_t cell) const { return parking_.at(cell); }
  void release(std::uint32_t cell) { parking_.release(cell); }

  void forget(std::uint32_t tag);
  /// Tags of which a stale operation was dropped since the last call.
  std::vector<std::uint32_t> take_stale_tags() { return std::exchange(stale_tags_, {}); }

  std::size_t operations() const { return waiting_.size(); }
  std::size_t parked() const { return parking_.capacity() - parking_.available(); }

 private:
  struct Refused {
    bool known = false;
    std::uint32_t tag = 0;
    std::uint32_t number = 0;
  };

  const EarlyOperation* find(std::uint32_t tag, std::uint32_t number) const;
  EarlyOperation* find_or_add(std::uint32_t tag, std::uint32_t number, Time now);
  bool forget_stale(Time now);
  void release_cells(EarlyOperation& one);

  const Limits limits_;
  std::vector<EarlyOperation> waiting_;
  std::vector<Refused> refused_;  // the latest ones, a ring
  std::size_t next_refused_ = 0;
  ParkingLot parking_;
  std::vector<std::uint32_t> stale_tags_;
};

}  // namespace tarpon
