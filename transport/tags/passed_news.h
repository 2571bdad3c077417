// The HEARTBEATs in which this rank tells its peers how far it is with each tag, and asks how far
// they are.
//
// Packets of a tag say how far their sender is with it. After the last operation of a tag there are
// none, so HEARTBEATs tell it, for many tags at once: soon after operations were closed, and again
// to a peer that asks. When every peer has passed a tag, no rank can ask about it, and it is
// forgotten.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/peers/control_queue.h"
#include "transport/peers/participants.h"
#include "transport/tags/tag_history.h"

namespace tarpon {

/// The lowest operation of the tag that `peer` may still ask for, as far as heard.
std::uint32_t passed_by(const TagState& tag_state, Rank peer, const Participants& participants);

class PassedNews {
 public:
  static constexpr Duration kTellAfter = 100ms;  // an operation was closed, and no other is open
  static constexpr Duration kAskAfter = 300ms;   // a HEARTBEAT that tells may be lost

  /// `tags` and `participants` outlive the news. `max_entries`: tags that one HEARTBEAT carries.
  PassedNews(Rank rank, std::uint32_t world_size, std::size_t max_entries, TagHistory& tags,
             const Participants& participants);

  /// The lowest open operation of the tag has risen.
  void rose(TagState& tag_state, Time now);
  /// Queues the HEARTBEATs that are due. Call it when next() has passed.
  void run(Time now, ControlQueue& control);
  Time next() const;

 private:
  void tell(ControlQueue& control);
  void ask(Time now, ControlQueue& control);

  const Rank rank_;
  const std::uint32_t world_size_;
  const std::size_t max_entries_;
  TagHistory& tags_;
  const Participants& participants_;
  std::vector<std::uint32_t> untold_;     // tags; TagState::untold is set
  Time tell_at_ = kNever;                 // when peers are told of them
  Time ask_at_ = kNever;                  // when peers are asked how far they are
  std::vector<std::size_t> asked_up_to_;  // by peer: the place in tags.active() to go on at
};

}  // namespace tarpon
