// Ranks that have left, and whose calls are not over here yet.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/endpoint.h"
#include "transport/rank.h"
#include "transport/tag_numbers.h"

namespace tarpon {

/// Not thread-safe.
class Departures {
 public:
  /// At rank `self`.
  explicit Departures(Rank self) : self_(self) {}

  /// Notes that `rank` has left. It still takes part in the calls below `next_numbers`.
  void left(Rank rank, const std::vector<NextNumber>& next_numbers);

  /// Notes that `rank` takes part in no call any more.
  void gone(Rank rank);

  /// Returns and forgets the ranks whose calls are all over on `endpoint`. Bit r: rank r.
  std::uint64_t take_passed(const Endpoint& endpoint);

  /// Returns and forgets all ranks that left, for a rank that runs no more calls.
  std::uint64_t take_all();

 private:
  struct Leaving {
    Rank rank = 0;
    std::vector<NextNumber> next_numbers;  // of its calls that are not over here
  };
  const Rank self_;
  std::vector<Leaving> leaving_;
};

}  // namespace tarpon
