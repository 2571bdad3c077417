#include "transport/peers/peer_clocks.h"

namespace tarpon {

std::optional<Duration> PeerClocks::receive(const tarpon_header& header, Time now) {
  Clock& clock = clocks_[header.sender];
  overtaken_ =
      clock.heard_any && static_cast<std::int32_t>(header.packet_number - clock.packet_number) < 0;
  if (!overtaken_) clock.packet_number = header.packet_number;
  clock.heard_any = true;
  clock.sent_us = header.sent_us;
  clock.heard = now;
  age_ = kUnknownAge;
  if (header.echo_us == 0) return std::nullopt;
  age_ = {};
  const auto round_trip = static_cast<std::int32_t>(microseconds(now) - header.echo_us);
  if (round_trip < 0) return std::nullopt;
  age_ = std::chrono::microseconds(round_trip);
  return age_;
}

std::uint32_t PeerClocks::echo(Rank peer, Time now) const {
  const Clock& clock = clocks_[peer];
  const Duration held = now - clock.heard;
  return clock.heard_any && held <= kLongestHeld ? clock.sent_us + microseconds(Time(held)) : 0;
}

bool PeerClocks::echoes(const tarpon_header& header, std::uint32_t since_us, Time now) {
  constexpr std::int32_t kDrift = 100'000;  // microseconds: 200 s at 500 ppm
  if (header.echo_us == 0) return false;
  return static_cast<std::int32_t>(header.echo_us - since_us) >= 0 &&
         static_cast<std::int32_t>(header.echo_us - microseconds(now)) <= kDrift;
}

void PeerClocks::ask(Rank peer, std::uint32_t sent_us) {
  clocks_[peer].asked = true;
  clocks_[peer].asked_us = sent_us;
}

bool PeerClocks::answers(const tarpon_header& header, Time now) const {
  const Clock& clock = clocks_[header.sender];
  return clock.asked && echoes(header, clock.asked_us, now);
}

}  // namespace tarpon
