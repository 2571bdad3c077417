// Tracks the owner of each frame of a UMEM. A frame has one of five states, and every transition is
// checked: a frame that the kernel hands back twice, or never had, is counted and otherwise
// ignored.
//
//   free -> fill (fill ring) -> received (lent to the caller) -> free
//   free -> filling (lent to the caller) -> sending (transmit ring) -> free
//
// A frame of several chunks (`span` > 1) is named by its first one. One thread at a time.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tarpon::xdp {

/// `inside`: a chunk that is not the first of its frame.
enum class FrameState : std::uint8_t { free, fill, received, filling, sending, inside };

class FramePool {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  /// Holds the frames first, first + span, ... below `end`, all of them free.
  FramePool(std::uint32_t first, std::uint32_t end, std::uint32_t span = 1)
      : first_(first), states_(std::size_t{(end - first) / span} * span, FrameState::inside) {
    const auto chunks = static_cast<std::uint32_t>(states_.size());
    free_.reserve(chunks / span);
    for (std::uint32_t at = chunks; at > 0; at -= span) {
      states_[at - span] = FrameState::free;
      free_.push_back(first + at - span);
    }
    size_ = free_.size();
  }

  /// Takes a free frame and puts it into state `to`; kNone when there is none.
  std::uint32_t take(FrameState to) {
    if (free_.empty()) return kNone;
    const std::uint32_t frame = free_.back();
    free_.pop_back();
    states_[frame - first_] = to;
    return frame;
  }

  /// Moves `frame` from state `from` to state `to`. When it is none of ours or is not in state
  /// `from`, counts a violation and returns false.
  bool move(std::uint32_t frame, FrameState from, FrameState to) {
    if (!owns(frame) || states_[frame - first_] != from) {
      ++violations_;
      return false;
    }
    states_[frame - first_] = to;
    if (to == FrameState::free) free_.push_back(frame);
    return true;
  }

  bool owns(std::uint32_t frame) const {
    return frame - first_ < states_.size() && states_[frame - first_] != FrameState::inside;
  }
  FrameState state(std::uint32_t frame) const { return states_[frame - first_]; }
  std::size_t available() const { return free_.size(); }
  std::size_t size() const { return size_; }
  std::uint64_t violations() const { return violations_; }

 private:
  std::uint32_t first_;
  std::vector<FrameState> states_;   // by chunk: no division by the span on the data path
  std::vector<std::uint32_t> free_;  // a stack: the frame used last is still in the cache
  std::size_t size_ = 0;
  std::uint64_t violations_ = 0;
};

}  // namespace tarpon::xdp
