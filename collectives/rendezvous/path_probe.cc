#include "collectives/rendezvous/path_probe.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/clock.h"
#include "transport/probe_packet.h"

namespace tarpon::rendezvous {
namespace {

// Wait for packets that are slower than the control channel, which has reported them as sent.
constexpr Duration kSettle = 20ms;
// Longest wait for a port that takes no packet, in one call.
constexpr Duration kBackPressure = 50ms;

constexpr std::uint32_t kPasses = 6;  // through all candidates, in a round
constexpr std::uint32_t kRounds = 4;
// Pause between two passes, since losses come in bursts; longer where a pass would exceed 100 MB/s.
constexpr Duration kPassInterval = 2ms;
constexpr Duration kPerByte = 10ns;

constexpr std::uint32_t kLastBatches = 64;  // of receive(): more than a socket buffer holds

}  // namespace

PathProbe::PathProbe(Port& port, ControlChannel& control, std::uint32_t slot_bytes)
    : port_(port),
      control_(control),
      candidates_(path_candidates(slot_bytes)),
      arrived_(control.world_size(), std::vector<std::uint32_t>(candidates_.size())),
      sent_(candidates_.size()),
      send_errors_(control.world_size()) {}

void PathProbe::begin() {
  const std::uint32_t world = control_.world_size();
  std::vector<Rank> peers;  // another order at each rank: not all begin with the same one
  for (std::uint32_t next = 1; next < world; ++next) {
    peers.push_back(static_cast<Rank>((control_.rank() + next) % world));
  }
  send_until_ = monotonic_now() + kBackPressure;
  send(peers, 0);
  ++sent_[0];
  pause(Duration::zero());
}

Result<PathSize> PathProbe::finish(const std::vector<RankInfo>& ranks, Time deadline) {
  settle();
  auto tallies = share(deadline);
  for (std::uint32_t round = 0; round < kRounds && tallies && !certain(*tallies); ++round) {
    if (auto searched = search(*tallies, deadline); !searched) return fail(searched.error());
    settle();
    tallies = share(deadline);
  }
  if (!tallies) return fail(tallies.error());
  auto size = decide(candidates_, *tallies, ranks, send_errors_);
  blocked_ = !size;
  return size;
}

/// Sends `candidate` to each of `peers`, in trains of their own: a network may let a long train
/// pass and lose its packets one by one.
void PathProbe::send(std::span<const Rank> peers, std::size_t candidate) {
  const ProbePacket probe{TARPON_PROBE, TARPON_PROBE_PATH, static_cast<std::uint32_t>(candidate),
                          candidates_[candidate]};
  while (!peers.empty()) {
    const std::span<TxPacket> frames = port_.transmit_frames(peers.size());
    for (std::size_t i = 0; i < frames.size(); ++i) {
      fill_probe(frames[i], probe, control_.job(), control_.rank(), peers[i]);
    }
    port_.transmit(frames);
    peers = peers.subspan(frames.size());
    const Time now = monotonic_now();
    receive(now);
    if (!frames.empty()) continue;
    if (now >= send_until_) return;
    port_.wait(now, std::min(send_until_, now + 1ms));
  }
}

/// Counts the probes in the packets that the port hands out. False when nothing waits.
bool PathProbe::receive(Time now) {
  const std::span<const RxPacket> packets = port_.receive(now);
  for (const RxPacket& packet : packets) {
    const auto probe = read_probe(packet, control_.job());
    if (!probe || probe->type != TARPON_PROBE || probe->kind != TARPON_PROBE_PATH ||
        probe->number >= candidates_.size() || probe->bytes != candidates_[probe->number] ||
        packet.source >= arrived_.size()) {
      continue;
    }
    ++arrived_[packet.source][probe->number];
  }
  return !packets.empty();
}

/// Receives for `duration`, and until the port has sent all.
void PathProbe::pause(Duration duration) {
  const Time start = monotonic_now();
  const Time stop = start + duration;
  const Time limit = std::max(stop, start + kBackPressure);
  for (Time now = start; now < stop || (port_.unsent() > 0 && now < limit); now = monotonic_now()) {
    receive(now);
    port_.wait(now, now < stop ? stop : std::min(limit, now + 1ms));
  }
}

/// Receives until nothing is missing, for at most kSettle; then what waits already, in case the
/// process has slept.
void PathProbe::settle() {
  const Time stop = monotonic_now() + kSettle;
  for (Time now = monotonic_now(); now < stop; now = monotonic_now()) {
    receive(now);
    if (all_full()) return;
    port_.wait(now, stop);
  }
  for (std::uint32_t batch = 0; batch < kLastBatches && receive(monotonic_now()); ++batch) {
  }
}

bool PathProbe::all_full() const {
  for (std::size_t rank = 0; rank < arrived_.size(); ++rank) {
    if (rank != control_.rank() && arrived_[rank][0] == 0) return false;
  }
  return true;
}

/// Exchanges the pairs that lack the full size, and returns those of all ranks.
Result<PathProbe::Tallies> PathProbe::share(Time deadline) {
  PathReport mine{.tallies = {}, .send_error = send_error()};
  for (std::size_t rank = 0; rank < arrived_.size(); ++rank) {
    if (rank == control_.rank() || arrived_[rank][0] > 0) continue;
    mine.tallies.push_back({static_cast<Rank>(rank), control_.rank(), arrived_[rank]});
  }
  auto texts = control_.all_gather(encode(mine), deadline);
  if (!texts) return fail(texts.error());
  Tallies all;
  for (std::size_t rank = 0; rank < texts->size(); ++rank) {
    auto told = decode_path_report((*texts)[rank], static_cast<Rank>(rank), control_.world_size(),
                                   candidates_.size());
    if (!told) return fail(told.error());
    all.insert(all.end(), told->tallies.begin(), told->tallies.end());
    send_errors_[rank] = std::move(told->send_error);
  }
  std::sort(all.begin(), all.end(), [](const PathTally& a, const PathTally& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  return all;
}

/// Why this rank's probes did not leave.
std::string PathProbe::send_error() const {
  if (const auto failure = port_.failure()) return failure->message;
  const int error = port_.statistics().send_error;
  if (error == 0) return "";
  return std::strerror(error) +
         std::string(error == EPERM ? ": open UDP to the other ranks in its firewall" : "");
}

bool PathProbe::certain(const Tallies& tallies) const {
  return std::all_of(tallies.begin(), tallies.end(), [this](const PathTally& tally) {
    return judge(tally.arrived, sent_).certain;
  });
}

/// Sends all candidates to the ranks that lack this rank's full packets, and waits for the others.
Result<void> PathProbe::search(const Tallies& tallies, Time deadline) {
  std::vector<Rank> peers;
  for (const PathTally& tally : tallies) {
    if (tally.from == control_.rank()) peers.push_back(tally.to);
  }
  std::uint64_t bytes = 0;
  for (const std::uint32_t candidate : candidates_) bytes += peers.size() * packet_bytes(candidate);
  const Duration interval =
      std::max<Duration>(kPassInterval, kPerByte * static_cast<Duration::rep>(bytes));
  send_until_ = monotonic_now() + kPasses * interval + kBackPressure;
  for (std::uint32_t pass = 0; pass < kPasses && monotonic_now() < deadline; ++pass) {
    for (std::size_t candidate = 0; candidate < candidates_.size(); ++candidate) {
      send(peers, candidate);
    }
    pause(interval);
  }
  for (std::uint32_t& sent : sent_) sent += kPasses;
  auto all_have_sent = control_.all_gather("", deadline);
  if (!all_have_sent) return fail(all_have_sent.error());
  return {};
}

}  // namespace tarpon::rendezvous
