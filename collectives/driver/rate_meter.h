// The rate at which this rank's link carries packets while it is busy.
//
// The bytes that a port counts are cut into windows of equal size. A window's rate is its size over
// the time it took. The median over the latest windows is that of a busy link, as long as most of
// the bytes come one after another: a pause makes one window slow, however long it is.
//
// A value. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

class RateMeter {
 public:
  /// Forgets all windows, and measures over `window` bytes from the next note() on.
  /// REQUIRES: window > 0.
  void begin(std::uint64_t window);

  bool on() const { return window_ > 0; }

  /// Takes the counts of the port.
  void note(const PortStatistics& counts, Time now);

  /// Bytes a second, of the slower direction; 0: there is no whole window yet.
  double rate() const;

 private:
  static constexpr std::size_t kKept = 64;  // windows

  class Direction {
   public:
    void note(std::uint64_t bytes, std::uint64_t window, Time now);
    double median() const;

   private:
    bool begun_ = false;
    std::uint64_t from_ = 0;  // count at the start of this window
    Time since_{};
    std::array<double, kKept> rates_{};
    std::size_t windows_ = 0;
  };

  std::uint64_t window_ = 0;
  Direction received_, sent_;
};

}  // namespace tarpon
