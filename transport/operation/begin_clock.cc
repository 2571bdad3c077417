#include "transport/operation/begin_clock.h"

#include <algorithm>
#include <array>

#include "transport/rank_mask.h"

namespace tarpon {

void BeginClock::start_at_half(std::span<const PeerExchange> peers, std::uint32_t live, Rank self) {
  struct Begin {
    PeerBegin told;
    Rank rank = 0;
  };
  std::array<Begin, 64> all;
  std::size_t count = 0;
  all[count++] = {{.at = began_}, self};
  for (std::size_t rank = 0; rank < peers.size(); ++rank) {
    if (peers[rank].heard()) all[count++] = {peers[rank].begin(), static_cast<Rank>(rank)};
  }
  const auto last = all.begin() + (std::max(live, 1u) - 1) / 2;
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(all.begin(), last, end,
                   [](const Begin& a, const Begin& b) { return a.told.at < b.told.at; });
  start(last->told.at, last->told.read_after);
  const auto latest = [](const Begin& one) { return std::min(one.told.at, one.told.read); };
  std::nth_element(all.begin(), last, end,
                   [&](const Begin& a, const Begin& b) { return latest(a) < latest(b); });
  first_half_ = 0;
  for (auto one = all.begin(); one != end; ++one) {
    if (latest(*one) <= latest(*last)) first_half_ |= bit(one->rank);
  }
}

}  // namespace tarpon
