#include "transport/rate/timely_pace.h"

namespace tarpon {
namespace {

constexpr double kFasterThanAnyLink = 12.5e9;  // bytes a second

double line_rate(double max_bytes_per_second) {
  return max_bytes_per_second > 0 ? max_bytes_per_second : kFasterThanAnyLink;
}

}  // namespace

TimelyPace::TimelyPace(std::uint16_t world_size, double max_bytes_per_second)
    : peers_(world_size, Peer{Timely(line_rate(max_bytes_per_second)),
                              Pacer(line_rate(max_bytes_per_second))}) {}

void TimelyPace::round_trip(Rank peer, Duration rtt) {
  Peer& one = peers_[peer];
  one.timely.round_trip(rtt);
  one.pacer.set_rate(one.timely.bytes_per_second());
}

}  // namespace tarpon
