// How long a sweep over sizes still takes, from what its parts took so far.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace tarpon {

/// The sweep is a list of items, each of `steps` iterations on one size. Times are seconds since
/// the start. Knows nothing of clocks.
class WorkEstimate {
 public:
  /// `sizes`: of the items, in their order, in bytes.
  WorkEstimate(std::vector<std::uint64_t> sizes, std::uint32_t steps);

  /// `done` steps of the current item, at first item 0, are done at `now`.
  void update(std::uint32_t done, double now);

  /// The current item, with what follows its steps, ended at `now`; the next one begins.
  void finish_item(double now);

  /// Seconds from the last update() to the end of all items. Nothing in the first three seconds,
  /// and while the sizes seen so far say too little about the rest.
  std::optional<double> left() const;

 private:
  /// Seconds of one item of `size`.
  std::optional<double> predict(std::uint64_t size) const;

  std::vector<std::uint64_t> sizes_;
  std::uint32_t steps_;
  std::size_t item_ = 0;
  double begin_ = 0;  // of the current item
  double now_ = 0;
  double current_ = 0;   // seconds that the current item is expected to take
  double overhead_ = 1;  // whole time over time of the steps, of the last item that ended
  std::map<std::uint64_t, double> known_;  // seconds of an item, by size: the latest
};

}  // namespace tarpon
