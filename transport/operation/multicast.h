// Which slots of a stage leave by multicast: one packet for all peers (ULTIMA's native multicast).
//
// A peer is *in step* if it is live, not silent, and has credit for all slots that have left by
// multicast. A slot leaves when all peers in step have credit for it. It waits for a peer that has
// not begun the operation for at most 2 ms, from when the first peer has credit. It waits up to 50
// ms for a peer that has begun. Such a peer gives its credit to other data first. Slots that it has
// not asked for would overflow its link. If the stage has an end, a slot waits for at most a
// quarter of the time that is left. So multicast goes at the pace of the slowest peer that gives
// credit. Receivers give credit for such stages in the order of the ranks. Peers without credit are
// out of step then: later slots do not wait for them, until their credit has caught up. The
// multicast still reaches these peers. They lack only lost slots, and ask for those. A silent peer
// gets its slots one by one.
//
// The first request for a slot is answered to its peer alone. A packet that was lost near its
// sender is lost for all peers: so a second request within 10 ms is answered by multicast, and
// requests that come within 2 ms of that are answered by it too.
#pragma once

#include <cstdint>
#include <optional>

#include "transport/operation/alarm.h"
#include "transport/operation/operation.h"
#include "transport/peers/participants.h"

namespace tarpon {

inline constexpr Duration kMulticastPatience = 2ms;
inline constexpr Duration kPatienceWithBegun = 50ms;

/// Whether `message` goes to a peer in step. REQUIRES: the stage is sent by multicast.
bool in_step(const Stage& stage, const SendMessage& message, const Participants& participants);

/// The end of the slots from stage.multicast.next on that may leave by multicast now. If a slot
/// waits for credit, `alarm` rings at the end of the wait. REQUIRES: `stage` is of `operation`.
std::uint32_t multicast_limit(const Operation& operation, Stage& stage,
                              const Participants& participants, Time now, Alarm& alarm);

/// Notes that `slots` slots have left by multicast.
void note_multicast(Stage& stage, const Participants& participants, std::uint32_t slots);

/// Where the answer to a request of `peer` for `slot` goes: to it alone or to kAllRanks; nothing:
/// the latest answer serves it. REQUIRES: the stage is sent by multicast.
std::optional<Rank> answer_to(Stage& stage, Rank peer, std::uint32_t slot, Time now);

/// The end of the slots from message.next on that may be sent to the message's peer alone.
std::uint32_t unicast_limit(const Stage& stage, const SendMessage& message,
                            const Participants& participants);

}  // namespace tarpon
