// Estimates how long a sweep over sizes still takes, from how long its parts took so far.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace tarpon {

/// The sweep is a list of items, each of `steps` iterations on one size. Times are seconds since
/// the start; the class reads no clock.
class WorkEstimate {
 public:
  /// `sizes`: of the items, in their order, in bytes.
  WorkEstimate(std::vector<std::uint64_t> sizes, std::uint32_t steps);

  /// Reports that `done` steps of the current item, at first item 0, are done at `now`.
  void update(std::uint32_t done, double now);

  /// Ends the current item, including the work after its steps, at `now`; the next one begins.
  void finish_item(double now);

  /// Seconds from the last update() to the end of all items. nullopt in the first three seconds,
  /// and while the sizes seen so far say too little about the rest.
  std::optional<double> left() const;

 private:
  /// Predicted seconds of one item of `size` bytes.
  std::optional<double> predict(std::uint64_t size) const;

  std::vector<std::uint64_t> sizes_;
  std::uint32_t steps_;
  std::size_t item_ = 0;
  double begin_ = 0;  // of the current item
  double now_ = 0;
  double current_ = 0;                     // seconds that the current item is expected to take
  double overhead_ = 1;                    // time of the last ended item, over that of its steps
  std::map<std::uint64_t, double> known_;  // latest seconds of an item, by size
};

}  // namespace tarpon
