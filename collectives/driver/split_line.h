// The line of a communicator that is split from a job.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/driver/driver.h"
#include "transport/ports/port_lines.h"

namespace tarpon {

/// Any thread may make and destroy it while the driver works.
class SplitLine {
 public:
  /// PortLines::open().
  SplitLine(Driver& driver, std::uint16_t communicator, std::vector<Rank> ranks)
      : driver_(driver), line_(driver.open_line(communicator, std::move(ranks))) {}
  /// REQUIRES: its engine is gone.
  ~SplitLine() { driver_.close_line(std::move(line_)); }
  SplitLine(const SplitLine&) = delete;
  SplitLine& operator=(const SplitLine&) = delete;

  PortLine& operator*() { return *line_; }

 private:
  Driver& driver_;
  std::unique_ptr<PortLine> line_;
};

}  // namespace tarpon
