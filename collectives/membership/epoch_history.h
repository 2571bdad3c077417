// The setting that all ranks must share while a job runs, by operation: whether a bounded call is
// coded, and whether it may go through the memory of hosts.
//
// An *epoch* is a setting with a number. An epoch record gives the first operation of each tag that
// runs under it. membership/epochs.h describes which rank decides a record, and when.
//
// Every packet carries its operation's epoch. Nothing is summed across epochs: a rank drops packets
// of another epoch, which count as lost, and learns from them the epoch of its next operations.
//
// No thread, clock or socket. Not thread-safe.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "transport/time.h"

namespace tarpon {

struct EpochSetting {
  std::uint16_t number = 0;  // wraps: compared by later_epoch()
  bool coded = false;
  bool flat = false;  // no bounded call goes through the memory of hosts
  bool operator==(const EpochSetting&) const = default;
};

struct EpochRecord {
  struct Start {
    std::uint32_t tag = 0;
    std::uint32_t from = 0;  // the first operation in this epoch
    bool operator==(const Start&) const = default;
  };
  EpochSetting setting;
  std::vector<Start> starts;  // unlisted tags are in the epoch from their first operation on
  bool operator==(const EpochRecord&) const = default;
};

/// Measurements of one bounded call of this rank, from which the setting is derived.
struct CallEvidence {
  /// Share that its result lacked. None with late ranks or void shards, and none of a call whose
  /// coding would take more than half of its bound.
  std::optional<double> lost;
  bool coded = false;
  Duration bound{};
  Duration took{};          // since its clock started
  bool over_hosts = false;  // it went through the memory of hosts
};

/// The epoch of each operation, as far as this rank knows.
class EpochHistory {
 public:
  /// Begins with epoch 0 for all operations.
  explicit EpochHistory(bool coded);

  EpochSetting at(std::uint32_t tag, std::uint32_t number) const;

  /// Adds a decided record. Ignores it if it is not newer than the latest decided one.
  void decided(const EpochRecord& record);

  /// Tags of one undecided epoch that are kept, the latest ones.
  static constexpr std::size_t kMostSeen = 4096;

  /// Takes over the epoch in which a peer runs operation `number` of `tag`, if it is newer than the
  /// known one: it applies to this tag from that operation on.
  void seen(std::uint32_t tag, std::uint32_t number, EpochSetting setting);

 private:
  struct Known {
    EpochRecord record;
    bool decided = false;  // false: only its listed tags are in the epoch
  };
  static constexpr std::size_t kKept = 8;

  void forget_oldest();

  /// Oldest first. The first one is decided, and applies to all other operations.
  std::deque<Known> records_;
};

}  // namespace tarpon
