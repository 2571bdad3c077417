#include "transport/endpoint/outflow.h"

#include <algorithm>

namespace tarpon {
namespace {

constexpr double kLineRate = 12.5e9;  // bytes a second: faster than any one rank

}  // namespace

Outflow::Outflow(const EndpointOptions& options)
    : own_(options.max_bytes_per_second),
      senders_(options.world_size, 0),
      peers_at_once_(options.world_size) {
  if (options.sending != SendRule::timely) return;
  const double line = options.max_bytes_per_second > 0 ? options.max_bytes_per_second : kLineRate;
  timed_.assign(options.world_size, Peer{Timely(line), Pacer(line)});
}

std::size_t Outflow::allowed(Rank peer, Time now, std::size_t packet_bytes,
                             std::size_t most) const {
  most = own_.allowed(now, packet_bytes, most);
  return timed_.empty() ? most : timed_[peer].pacer.allowed(now, packet_bytes, most);
}

void Outflow::sent(Rank peer, Time now, std::size_t bytes) {
  own_.sent(now, bytes);
  if (!timed_.empty()) timed_[peer].pacer.sent(now, bytes);
}

Time Outflow::next(Rank peer) const {
  const Time own = own_.bytes_per_second() > 0 ? own_.next() : Time{};
  if (!timed_.empty()) return std::max(own, timed_[peer].pacer.next());
  return own_.bytes_per_second() > 0 ? own : kNever;
}

void Outflow::round_trip(Rank peer, Duration rtt) {
  if (timed_.empty()) return;
  timed_[peer].timely.round_trip(rtt);
  timed_[peer].pacer.set_rate(timed_[peer].timely.bytes_per_second());
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
