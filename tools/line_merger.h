// Joins the standard error of several ranks so that what all of them say appears once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tarpon {

/// Passes whole lines on as they come. A line is held back when another rank has already said the
/// same line that often: the n-th time of a line appears once for all ranks. One thread.
class LineMerger {
 public:
  using Output = std::function<void(std::string_view line)>;  // without the newline

  LineMerger(std::uint32_t ranks, Output output) : ranks_(ranks), output_(std::move(output)) {}

  /// Bytes of a rank; lines may be split anywhere. A line above 64 KiB is passed on in pieces.
  void add(std::uint32_t rank, std::string_view bytes);

  /// The rank says no more: its unfinished line is passed on.
  void finish(std::uint32_t rank);

 private:
  struct Speaker {
    std::string partial;
    std::unordered_map<std::string, std::uint64_t> said;
  };

  void line(Speaker& speaker, const std::string& text);

  std::vector<Speaker> ranks_;
  std::unordered_map<std::string, std::uint64_t> shown_;
  Output output_;
};

}  // namespace tarpon
