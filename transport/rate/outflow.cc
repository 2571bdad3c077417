#include "transport/rate/outflow.h"

#include <algorithm>
#include <bit>

#include "transport/rate/rule_choice.h"

namespace tarpon {

Outflow::Outflow(const EndpointOptions& options)
    : own_(options.max_bytes_per_second),
      pace_(make_send_pace(options)),
      senders_(options.world_size, 0),
      peers_at_once_(options.world_size) {}

std::size_t Outflow::allowed(Rank peer, Time now, std::size_t packet_bytes,
                             std::size_t most) const {
  return pace_->allowed(peer, now, packet_bytes, own_.allowed(now, packet_bytes, most));
}

void Outflow::sent_to_all(std::uint64_t peers, Time now, std::size_t bytes) {
  own_.sent(now, bytes);
  for (; peers != 0; peers &= peers - 1) {
    pace_->sent(static_cast<Rank>(std::countr_zero(peers)), now, bytes);
  }
}

Time Outflow::next(Rank peer) const {
  const Time paced = pace_->next(peer);
  if (own_.bytes_per_second() <= 0) return paced;
  return paced == kNever ? own_.next() : std::max(own_.next(), paced);
}

void Outflow::senders_at(Rank peer, std::uint32_t senders) {
  if (senders_[peer] == senders) return;
  senders_[peer] = senders;
  peers_at_once_ = static_cast<std::uint32_t>(senders_.size());
  for (const std::uint32_t one : senders_) {
    if (one > 0) peers_at_once_ = std::min(peers_at_once_, one);
  }
}

}  // namespace tarpon
