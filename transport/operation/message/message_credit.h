// The credit of one message, seen from its receiver: how many slots the sender may send, and how
// many of those may be on their way. The Granter decides; this class counts. For a peer that is
// left out OpenOperation grants all, so that no paced credit is spent on it.
//
// A value. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/operation/message/presence.h"

namespace tarpon {

class MessageCredit {
 public:
  /// Slots [0, granted()) may be sent, as last told.
  std::uint32_t granted() const { return granted_; }
  void set_granted(std::uint32_t slots) { granted_ = slots; }

  /// `slots` were asked for again.
  void request(std::uint32_t slots) { requested_ = slots; }
  /// Slots of the last request that have not come.
  std::uint32_t requested() const { return requested_; }
  /// An answer to the request has come.
  void answered() { requested_ -= requested_ > 0 ? 1 : 0; }
  /// No more can be missing of what was requested than of what was granted.
  void limit_requested(const Presence& here) {
    requested_ = std::min(requested_, granted_ - std::min(granted_, here.count()));
  }

  /// What was granted holds no credit any more: it was granted twice, and never came.
  void write_off() { written_off_ = granted_; }
  bool has_written_off() const { return written_off_ > 0; }

  /// Slots whose credit is used up.
  std::uint32_t used(const Presence& here) const { return std::max(here.end(), written_off_); }
  /// Slots that are granted and not used up.
  std::uint32_t outstanding(const Presence& here) const {
    return granted_ - std::min(granted_, used(here));
  }
  /// Slots that the sender may have on its way.
  std::uint32_t on_its_way(const Presence& here) const { return outstanding(here) + requested_; }

 private:
  std::uint32_t granted_ = 0;
  std::uint32_t requested_ = 0;
  std::uint32_t written_off_ = 0;
};

}  // namespace tarpon
