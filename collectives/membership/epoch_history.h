// What all ranks must choose alike while a job runs, by operation: whether a call is coded.
//
// An *epoch* is a setting with a number. An epoch record says from which operation of each tag on
// it holds; who decides it, and when: membership/epochs.h.
//
// Every packet carries its operation's epoch. Nothing is summed across epochs: a rank drops what
// comes of another one, as lost, and learns from it what holds from the next operation on.
//
// No thread, clock or socket. Not thread-safe.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "transport/time.h"

namespace tarpon {

struct EpochSetting {
  std::uint16_t number = 0;  // wraps: compared by later_epoch()
  bool coded = false;
  bool operator==(const EpochSetting&) const = default;
};

struct EpochRecord {
  struct Start {
    std::uint32_t tag = 0;
    std::uint32_t from = 0;  // the first operation in this epoch
    bool operator==(const Start&) const = default;
  };
  EpochSetting setting;
  std::vector<Start> starts;  // tags that are not listed are in it from their first operation on
  bool operator==(const EpochRecord&) const = default;
};

/// What a bounded call of this rank tells of the codec.
struct CodecEvidence {
  std::optional<double> lost;  // share that its result lacked; none with late ranks or void shards
  bool coded = false;
  Duration bound{};
  Duration took{};  // since its clock started
};

/// What holds for each operation, as far as this rank knows.
class EpochHistory {
 public:
  /// Epoch 0, from the beginning.
  explicit EpochHistory(bool coded);

  EpochSetting at(std::uint32_t tag, std::uint32_t number) const;

  /// A decided record. One that is not newer than the latest decided one is not taken.
  void decided(const EpochRecord& record);

  /// A peer runs operation `number` of `tag` in an epoch that is newer than what is known here: it
  /// holds from there on, for this tag.
  void seen(std::uint32_t tag, std::uint32_t number, EpochSetting setting);

 private:
  struct Known {
    EpochRecord record;
    bool decided = false;  // else only its listed tags are in it
  };
  static constexpr std::size_t kKept = 8;

  std::deque<Known> records_;  // oldest first; the first one holds for all else
};

}  // namespace tarpon
