// The numbers of calls that end without having begun, and that take no number at the endpoint,
// because this rank is evicted, its communicator is aborted, or its port has broken.
#pragma once

#include <cstdint>
#include <optional>

#include "collectives/allreduce.h"
#include "transport/tag_numbers.h"

namespace tarpon {

/// Takes constant time and limited memory: a program may go on with a fresh tag for each call. Not
/// thread-safe.
class MissedCalls {
 public:
  /// `remembered_tags`: maximum number of tags; the oldest one is forgotten first.
  explicit MissedCalls(std::uint32_t remembered_tags)
      : next_numbers_(remembered_tags), first_numbers_(remembered_tags) {}

  /// The number of the next call of `tag`; nullopt if no call of it has been noted.
  std::optional<std::uint32_t> next_number(std::uint32_t tag) const;

  /// Notes a call by its report, which has its number. `next_number` is the tag's next number
  /// before this call. An evicted rank's report tells how many calls it misses: from the first one
  /// noted to the last one that was heard of, which is the one before `furthest`.
  void note(Report& report, std::uint32_t next_number, std::uint32_t furthest);

  /// Sets the number of the next call of `tag`.
  void set_next(std::uint32_t tag, std::uint32_t number) { next_numbers_.put(tag, {number}); }

 private:
  TagNumbers next_numbers_;
  TagNumbers first_numbers_;  // of the calls that an evicted rank missed
};

}  // namespace tarpon
