#include "transport/operation/begin_clock.h"

#include <algorithm>
#include <array>

namespace tarpon {

void BeginClock::start_at_half(std::span<const PeerExchange> peers, std::uint32_t live) {
  std::array<PeerBegin, 64> all;
  std::size_t count = 0;
  all[count++] = {began_, {}};
  for (const PeerExchange& peer : peers) {
    if (peer.heard()) all[count++] = peer.begin();
  }
  const auto last = all.begin() + (std::max(live, 1u) - 1) / 2;
  std::nth_element(all.begin(), last, all.begin() + static_cast<std::ptrdiff_t>(count),
                   [](const PeerBegin& a, const PeerBegin& b) { return a.at < b.at; });
  start(last->at, last->read_after);
}

}  // namespace tarpon
