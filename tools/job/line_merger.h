// Joins the standard error of several ranks: each line names its ranks, and appears once.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

/// Holds a line back for a while, and joins it with the same line of other ranks: the n-th
/// occurrence at one rank with the n-th at another. Lines leave in the order in which they first
/// came. A line leaves when all ranks that have not finished have said it, or after 1 s. One
/// thread.
///
/// A line of one rank becomes "rank 2: LINE", of several "ranks 0-2, 5: LINE". The tool's own
/// errors ("tarpon: MESSAGE") lose that beginning. If the message itself begins with "rank N: ",
/// all ranks know that rank N failed, and the line gets no prefix. If there is only one rank, lines
/// stay as they are.
class LineMerger {
 public:
  /// `is_error`: the line is an error of the tool. The line is without its newline.
  using Output = std::function<void(std::string_view line, bool is_error)>;

  LineMerger(std::uint32_t ranks, Output output) : ranks_(ranks), output_(std::move(output)) {}

  /// Bytes of a rank; lines may be split anywhere. A line above 64 KiB is passed on in pieces. At
  /// most 256 lines are held: beyond that the oldest leaves.
  void add(Rank rank, std::string_view bytes, Time now);

  /// The rank says no more: its unfinished line counts as a line, and no line waits for it.
  void finish(Rank rank, Time now);

  /// From now on a line leaves when all have said it or finished, however long that takes: for a
  /// job that is ending, whose caller has a bound.
  void hold() { holding_ = true; }

  /// Ends hold(): a line leaves after 1 s again, counted from when it came.
  void resume() { holding_ = false; }

  /// Passes on the lines that are due.
  void release(Time now);

  /// When the next line is due; kNever without one, or while lines are held.
  Time due() const;

 private:
  struct Speaker {
    std::string partial;
    bool finished = false;
  };

  struct Line {
    std::string text;
    std::vector<Rank> said;  // rising
    Time since;

    bool is_said_by(Rank rank) const;
  };

  void line(Rank rank, std::string text, Time now);
  bool complete(const Line& line) const;
  void pass_on(const Line& line) const;

  std::vector<Speaker> ranks_;
  std::deque<Line> lines_;
  bool holding_ = false;
  Output output_;
};

}  // namespace tarpon
