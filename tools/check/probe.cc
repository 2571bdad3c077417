#include "tools/check/probe.h"

#include <algorithm>
#include <array>

#include "tools/check/fragments.h"
#include "tools/check/pair_results.h"
#include "tools/cli/quantile.h"
#include "transport/clock.h"
#include "transport/probe_packet.h"

namespace tarpon {
namespace {

constexpr Duration kProbeInterval = 1ms;
constexpr Duration kLinger = 100ms;  // for the last replies of a phase

// The burst that finds a pair's rate. Slices are counted separately, so that a pause of a process
// or a queue that fills up spoils only one of them. Queues fill in the first one, which does not
// count.
constexpr Duration kSlice = 20ms;
constexpr double kSliceQuantile = 0.75;  // because other load on the hosts only slows slices down
// The flood at that rate consists of burst probes with the number after those of the slices.
constexpr std::uint32_t kFlood = kSlices;
constexpr Duration kFloodTime = 100ms;
constexpr Duration kFloodStep = 1ms;  // the longest pause between two trains of a fast flood

class Prober {
 public:
  Prober(Connection& connection, const CheckOptions& options)
      : port_(*connection.port),
        control_(*connection.control),
        slot_bytes_(connection.agreed.slot_bytes),
        job_(connection.agreed.endpoint.job),
        options_(options) {}

  Result<std::vector<PairProbe>> run() {
    const std::uint32_t world = control_.world_size();
    for (std::uint32_t round = 1; round < world; ++round) {
      round_ = {};
      slices_ = {};
      PairProbe& pair = round_.pair;
      pair.from = control_.rank();
      pair.to = static_cast<Rank>((pair.from + round) % world);
      source_ = static_cast<Rank>((pair.from + world - round) % world);
      if (auto met = meet(""); !met) return fail(met.error());
      round_trips(pair);
      if (auto met = meet(""); !met) return fail(met.error());
      const SliceTimes times = burst(pair.to);
      if (auto settled = settle(); !settled) return fail(settled.error());
      const auto seen = meet(encode(slices_));
      if (!seen) return fail(seen.error());
      const auto counts = decode_slices((*seen)[pair.to]);
      if (!counts) return fail(counts.error());
      if (auto flooded = flood(burst_rate(*counts, times)); !flooded) {
        return fail(flooded.error());
      }
      rounds_.push_back(round_);
    }
    return share();
  }

 private:
  using SliceTimes = std::array<Duration, kSlices>;

  Result<std::vector<std::string>> meet(const std::string& mine) {
    return control_.all_gather(mine, monotonic_now() + options_.job.deadline);
  }

  /// A probe that finds no frame free is lost.
  void send(const ProbePacket& probe, Rank to) {
    send_probe(port_, probe, job_, control_.rank(), to);
  }

  void receive(Time now) {
    for (const RxPacket& packet : port_.receive(now)) {
      const auto probe = read_probe(packet, job_);
      if (!probe) continue;
      if (probe->type == TARPON_PROBE && packet.source == source_) take_probe(*probe);
      if (probe->type == TARPON_PROBE_REPLY) take_reply(*probe, now);
    }
  }

  void take_probe(ProbePacket probe) {
    switch (probe.kind) {
      case TARPON_PROBE_BURST:
        if (probe.number < kSlices) ++slices_[probe.number];
        if (probe.number == kFlood) ++round_.heard_flood;
        return;
      case TARPON_PROBE_FULL:
      case TARPON_PROBE_SMALL:
        (probe.kind == TARPON_PROBE_FULL ? round_.heard_full : round_.heard_small) += 1;
        probe.type = TARPON_PROBE_REPLY;
        send(probe, source_);
        return;
      case TARPON_PROBE_PATH:  // of connect()
        return;
    }
  }

  void take_reply(const ProbePacket& reply, Time now) {
    if (reply.kind == TARPON_PROBE_SMALL) ++small_replies_;
    if (reply.kind != TARPON_PROBE_FULL || reply.number >= sent_at_.size()) return;
    Time& sent = sent_at_[reply.number];
    if (sent == kNever) return;
    trips_.push_back(std::chrono::duration<double, std::micro>(now - sent).count());
    sent = kNever;
  }

  void round_trips(PairProbe& pair) {
    sent_at_.assign(options_.probes, kNever);
    trips_.clear();
    small_replies_ = 0;
    const PortStatistics before = port_.statistics();
    const Time start = monotonic_now();
    Time next = start;
    Time stop = kNever;
    for (Time now = start; now < stop; now = monotonic_now()) {
      receive(now);
      if (pair.sent < options_.probes && now >= next) {
        sent_at_[pair.sent] = monotonic_now();
        send({TARPON_PROBE, TARPON_PROBE_FULL, pair.sent++, slot_bytes_}, pair.to);
        send({TARPON_PROBE, TARPON_PROBE_SMALL, pair.small_sent++, 0}, pair.to);
        next = now + kProbeInterval;
        if (pair.sent == options_.probes) stop = now + kLinger;
      }
      port_.wait(now, pair.sent < options_.probes ? next : stop);
    }
    pair.answered = static_cast<std::uint32_t>(trips_.size());
    pair.small_answered = small_replies_;
    pair.rtt_us = quantile(trips_, 0.5).value_or(0);
    const PortStatistics after = port_.statistics();
    if (after.tx_dropped - before.tx_dropped >= pair.sent) pair.send_error = after.send_error;
  }

  /// Sends at most `count` packets in one train. Returns how many the port accepted.
  std::size_t send_train(Rank to, std::uint32_t number, std::size_t count) {
    const std::span<TxPacket> frames = port_.transmit_frames(count);
    const ProbePacket probe{TARPON_PROBE, TARPON_PROBE_BURST, number, slot_bytes_};
    for (TxPacket& frame : frames) fill_probe(frame, probe, job_, control_.rank(), to);
    port_.transmit(frames);
    return frames.size();
  }

  /// Receives packets that other ranks still send, also late ones from a loaded host.
  Result<void> settle() {
    linger();
    if (auto met = meet(""); !met) return fail(met.error());
    linger();
    return {};
  }

  void linger() {
    const Time stop = monotonic_now() + kLinger / 2;
    for (Time now = monotonic_now(); now < stop; now = monotonic_now()) {
      receive(now);
      port_.wait(now, stop);
    }
  }

  /// Sends as fast as the port accepts packets. Returns how long each slice took.
  SliceTimes burst(Rank to) {
    SliceTimes times{};
    const std::size_t train = std::max(1u, port_.capabilities().burst);
    Time now = monotonic_now();
    for (std::uint32_t slice = 0; slice < kSlices; ++slice) {
      const Time start = now;
      const Time stop = start + kSlice;
      for (; now < stop; now = monotonic_now()) {
        receive(now);
        if (send_train(to, slice, train) == 0) port_.wait(now, stop);
      }
      times[slice] = now - start;
    }
    return times;
  }

  /// Packets per second that reached the peer, from its counts of the slices.
  static double burst_rate(const SliceCounts& counts, const SliceTimes& times) {
    std::vector<double> rates;
    for (std::size_t i = 1; i < kSlices; ++i) {
      rates.push_back(static_cast<double>(counts[i]) /
                      std::chrono::duration<double>(times[i]).count());
    }
    return quantile(rates, kSliceQuantile).value_or(0);
  }

  /// Sends `rate` packets per second. Packets that the receiver's buffers lose are counted there,
  /// and not as lost by the network.
  Result<void> flood(double rate) {
    PairProbe& pair = round_.pair;
    const PortStatistics before = port_.statistics();
    const std::uint64_t cut_before = fragmented_packets();
    const auto step =
        static_cast<std::size_t>(rate * std::chrono::duration<double>(kFloodStep).count());
    const std::size_t train =
        std::clamp<std::size_t>(step, 1, std::max(1u, port_.capabilities().burst));
    const Time start = monotonic_now();
    const Time stop = start + kFloodTime;
    Time now = start;
    for (; rate > 0 && now < stop; now = monotonic_now()) {
      receive(now);
      const double due = rate * std::chrono::duration<double>(now - start).count();
      const std::chrono::duration<double> to_next(
          (static_cast<double>(pair.flood_sent + train) - due) / rate);
      if (to_next.count() > 0) {
        port_.wait(now, std::min(stop, now + std::chrono::duration_cast<Duration>(to_next)));
      } else if (const std::size_t sent = send_train(pair.to, kFlood, train); sent > 0) {
        pair.flood_sent += sent;
      } else {
        port_.wait(now, stop);
      }
    }
    round_.flood_seconds = std::chrono::duration<double>(now - start).count();
    if (auto settled = settle(); !settled) return settled;
    const PortStatistics after = port_.statistics();
    pair.flood_sent -= std::min(pair.flood_sent, after.tx_dropped - before.tx_dropped);
    round_.overrun = after.rx_overruns - before.rx_overruns;
    pair.fragmented = fragmented_packets() - cut_before;
    return {};
  }

  Result<std::vector<PairProbe>> share() {
    const auto texts = meet(encode(rounds_));
    if (!texts) return fail(texts.error());
    return joined_pairs(*texts, slot_bytes_);
  }

  Port& port_;
  ControlChannel& control_;
  const std::uint32_t slot_bytes_;
  const std::uint32_t job_;
  const CheckOptions& options_;
  Rank source_ = 0;
  RoundLog round_;      // of the current round
  SliceCounts slices_;  // of the rank that probes this one in it
  std::vector<Time> sent_at_;
  std::vector<double> trips_;
  std::uint32_t small_replies_ = 0;
  std::vector<RoundLog> rounds_;
};

}  // namespace

Result<std::vector<PairProbe>> probe_pairs(Connection& connection, const CheckOptions& options) {
  return Prober(connection, options).run();
}

}  // namespace tarpon
