// Which operations the peers have passed, and what this rank may forget for that: kept results, and
// whole tags.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstdint>
#include <vector>

#include "bpf/wire.h"
#include "transport/endpoint.h"
#include "transport/operation/alarm.h"
#include "transport/peers/participants.h"
#include "transport/tags/early_operations.h"
#include "transport/tags/tag_history.h"

namespace tarpon {

class PassedPeers {
 public:
  /// All outlive it.
  struct Parts {
    const EndpointOptions& options;
    const Participants& participants;
    TagHistory& tags;
    EarlyOperations& early;
    Alarm& alarm;
  };
  explicit PassedPeers(const Parts& parts) : parts_(parts) {}

  /// Takes the `closed_below` of a packet.
  void note_header(TagState& tag_state, const tarpon_header& header, Time now);
  /// `peer` says that all its operations below `below` are closed. Beyond the window that may be a
  /// lie, or a broken header: it has to be `proven` by an answer to a question of this rank.
  void note(TagState& tag_state, Rank peer, std::uint32_t below, bool proven, Time now);

  /// Frees the results that no peer needs any more. Call it when a peer is further, or gone.
  void release(TagState& tag_state);
  /// Notes that a tag may be passed by all ranks.
  void look_at(std::uint32_t tag) { perhaps_passed_.push_back(tag); }
  /// Forgets the tags that no rank can ask about any more. Invalidates states of tags without open
  /// operations.
  void forget_tags();

 private:
  bool proves_end(const TagState& tag_state, const tarpon_header& header, Time now) const;
  void check_jump(const TagState& tag_state, Rank peer, Time now);
  bool have_passed(const TagState& tag_state, std::uint64_t peers, std::uint32_t number) const;
  bool all_are_through(const TagState& tag_state) const;

  const Parts parts_;
  std::vector<std::uint32_t> perhaps_passed_;  // tags; empty between calls of the endpoint
};

}  // namespace tarpon
