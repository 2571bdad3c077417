// Who owns each frame of a UMEM. Five states, and every transition is checked: a frame that the
// kernel hands back twice, or that it never had, is counted and otherwise ignored.
//
//   free -> fill (fill ring) -> received (lent to the caller) -> free
//   free -> filling (lent to the caller) -> sending (transmit ring) -> free
//
// A frame of several chunks (`span` > 1) is named by its first one. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tarpon::xdp {

enum class FrameState : std::uint8_t { free, fill, received, filling, sending };

class FramePool {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  /// Frames first, first + span, ... below `end`, all free.
  FramePool(std::uint32_t first, std::uint32_t end, std::uint32_t span = 1)
      : first_(first), span_(span) {
    const std::uint32_t count = (end - first) / span;
    states_.assign(count, FrameState::free);
    free_.reserve(count);
    for (std::uint32_t i = count; i > 0; --i) free_.push_back(first + (i - 1) * span);
  }

  /// A free frame, now in state `to`; kNone when there is none.
  std::uint32_t take(FrameState to) {
    if (free_.empty()) return kNone;
    const std::uint32_t frame = free_.back();
    free_.pop_back();
    states_[index(frame)] = to;
    return frame;
  }

  /// False, and counted as a violation, when `frame` is none of ours or is not in state `from`.
  bool move(std::uint32_t frame, FrameState from, FrameState to) {
    if (!owns(frame) || states_[index(frame)] != from) {
      ++violations_;
      return false;
    }
    states_[index(frame)] = to;
    if (to == FrameState::free) free_.push_back(frame);
    return true;
  }

  bool owns(std::uint32_t frame) const {
    return frame >= first_ && (frame - first_) % span_ == 0 && index(frame) < states_.size();
  }
  FrameState state(std::uint32_t frame) const { return states_[index(frame)]; }
  std::size_t available() const { return free_.size(); }
  std::size_t size() const { return states_.size(); }
  std::uint64_t violations() const { return violations_; }

 private:
  std::size_t index(std::uint32_t frame) const { return (frame - first_) / span_; }

  std::uint32_t first_;
  std::uint32_t span_;
  std::vector<FrameState> states_;
  std::vector<std::uint32_t> free_;  // a stack: what was used last is still in the cache
  std::uint64_t violations_ = 0;
};

}  // namespace tarpon::xdp
