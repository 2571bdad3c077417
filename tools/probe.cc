#include "tools/probe.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>

#include "tools/quantile.h"
#include "transport/clock.h"

namespace tarpon {
namespace {

// Kinds of probe, in the header's stage field.
constexpr std::uint8_t kFull = 0;
constexpr std::uint8_t kSmall = 1;
constexpr std::uint8_t kBlast = 2;

constexpr Duration kProbeInterval = 1ms;
constexpr Duration kLinger = 100ms;  // for the last replies of a phase

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
      PairProbe pair;
      pair.from = control_.rank();
      pair.to = static_cast<Rank>((pair.from + round) % world);
      source_ = static_cast<Rank>((pair.from + world - round) % world);
      heard_ = {};
      if (auto met = meet(); !met) return fail(met.error());
      round_trips(pair);
      if (auto met = meet(); !met) return fail(met.error());
      blast(pair);
      mine_.push_back(pair);
      seen_.push_back(heard_);
    }
    return share();
  }

 private:
  /// What this rank received from the rank that probes it in this round.
  struct Heard {
    std::uint32_t full = 0;
    std::uint32_t small = 0;
    std::uint64_t blast = 0;
    std::uint64_t overrun = 0;
    Time first{};
    Time last{};
  };

  Result<void> meet() {
    auto all = control_.all_gather("", monotonic_now() + options_.job.deadline);
    if (!all) return fail(all.error());
    return {};
  }

  void send(std::uint8_t type, Rank to, std::uint8_t kind, std::uint32_t index,
            std::uint32_t bytes) {
    const std::span<TxPacket> frames = port_.transmit_frames(1);
    if (frames.empty()) return;
    fill(frames[0], type, to, kind, index, bytes);
    port_.transmit(frames.first(1));
  }

  void fill(TxPacket& frame, std::uint8_t type, Rank to, std::uint8_t kind, std::uint32_t index,
            std::uint32_t bytes) const {
    tarpon_header header{};
    header.magic = TARPON_MAGIC;
    header.version = TARPON_WIRE_VERSION;
    header.type = type;
    header.job = job_;
    header.sender = control_.rank();
    header.slot = index;
    header.stage = kind;
    header.length = static_cast<std::uint16_t>(bytes);
    std::memcpy(frame.header, &header, sizeof header);
    frame.peer = to;
    frame.flow = 0;
    frame.payload = frame.room;
    frame.lender = kNoLender;
    frame.length = bytes;
    if (bytes > 0) std::memset(frame.room, 0, bytes);
  }

  void receive(Time now) {
    for (const RxPacket& packet : port_.receive(now)) {
      tarpon_header header;
      if (packet.length < sizeof header || packet.source == kUnknownRank) continue;
      std::memcpy(&header, packet.data, sizeof header);
      if (tarpon_check_header(&header, job_, packet.length - TARPON_HEADER_BYTES) !=
          TARPON_HEADER_OK) {
        continue;
      }
      if (header.type == TARPON_PROBE && packet.source == source_) take_probe(header, now);
      if (header.type == TARPON_PROBE_REPLY) take_reply(header, now);
    }
  }

  void take_probe(const tarpon_header& header, Time now) {
    if (header.stage == kBlast) {
      if (heard_.blast++ == 0) heard_.first = now;
      heard_.last = now;
      return;
    }
    (header.stage == kFull ? heard_.full : heard_.small) += 1;
    send(TARPON_PROBE_REPLY, source_, header.stage, header.slot, header.length);
  }

  void take_reply(const tarpon_header& header, Time now) {
    if (header.stage != kFull || header.slot >= sent_at_.size()) return;
    Time& sent = sent_at_[header.slot];
    if (sent == kNever) return;
    trips_.push_back(std::chrono::duration<double, std::micro>(now - sent).count());
    sent = kNever;
  }

  void round_trips(PairProbe& pair) {
    sent_at_.assign(options_.probes, kNever);
    trips_.clear();
    const Time start = monotonic_now();
    const Time stop = start + options_.probes * kProbeInterval + kLinger;
    Time next = start;
    for (Time now = start; now < stop; now = monotonic_now()) {
      receive(now);
      if (pair.sent < options_.probes && now >= next) {
        sent_at_[pair.sent] = monotonic_now();
        send(TARPON_PROBE, pair.to, kFull, pair.sent++, slot_bytes_);
        send(TARPON_PROBE, pair.to, kSmall, pair.small_sent++, 0);
        next = now + kProbeInterval;
      }
      port_.wait(now, pair.sent < options_.probes ? next : stop);
    }
    pair.answered = static_cast<std::uint32_t>(trips_.size());
    pair.rtt_us = quantile(trips_, 0.5).value_or(0);
  }

  /// As fast as the port takes it. What the receiver's buffers lose is counted there and is no loss
  /// of the network.
  void blast(PairProbe& pair) {
    const PortStatistics before = port_.statistics();
    const Time start = monotonic_now();
    const Time stop_sending = start + options_.blast;
    const Time stop = stop_sending + kLinger;
    const std::size_t train = std::max(1u, port_.capabilities().burst);
    for (Time now = start; now < stop; now = monotonic_now()) {
      receive(now);
      if (now >= stop_sending) {
        port_.wait(now, stop);
        continue;
      }
      const std::span<TxPacket> frames = port_.transmit_frames(train);
      for (TxPacket& frame : frames) fill(frame, TARPON_PROBE, pair.to, kBlast, 0, slot_bytes_);
      port_.transmit(frames);
      pair.blast_sent += frames.size();
      if (frames.empty()) port_.wait(now, stop_sending);
    }
    const PortStatistics after = port_.statistics();
    pair.blast_sent -= std::min(pair.blast_sent, after.tx_dropped - before.tx_dropped);
    heard_.overrun = after.rx_overruns - before.rx_overruns;
  }

  Result<std::vector<PairProbe>> share() {
    nlohmann::json json = nlohmann::json::array();
    for (std::size_t i = 0; i < mine_.size(); ++i) {
      const PairProbe& pair = mine_[i];
      const Heard& heard = seen_[i];
      const double seconds = std::chrono::duration<double>(heard.last - heard.first).count();
      const double rate = heard.blast > 1 && seconds > 0 ? static_cast<double>(heard.blast - 1) *
                                                               slot_bytes_ * 8 / seconds / 1e9
                                                         : 0;
      json.push_back({pair.to, pair.sent, pair.answered, pair.small_sent, pair.rtt_us,
                      pair.blast_sent, heard.full, heard.small, heard.blast, rate, heard.overrun});
    }
    auto texts = control_.all_gather(json.dump(), monotonic_now() + options_.job.deadline);
    if (!texts) return fail(texts.error());
    const auto world = static_cast<std::uint32_t>(texts->size());
    std::vector<PairProbe> pairs;
    std::vector<nlohmann::json> rows;
    for (const std::string& text : *texts) {
      rows.push_back(nlohmann::json::parse(text, nullptr, false));
      if (!rows.back().is_array() || rows.back().size() != world - 1) {
        return fail(Error::Code::mismatch, "a rank sent no valid probe results");
      }
    }
    for (Rank from = 0; from < world; ++from) {
      for (std::uint32_t round = 1; round < world; ++round) {
        const nlohmann::json& sent = rows[from][round - 1];
        const nlohmann::json& seen = rows[(from + round) % world][round - 1];
        PairProbe pair;
        pair.from = from;
        pair.to = sent[0].get<Rank>();
        pair.sent = sent[1].get<std::uint32_t>();
        pair.answered = sent[2].get<std::uint32_t>();
        pair.small_sent = sent[3].get<std::uint32_t>();
        pair.rtt_us = sent[4].get<double>();
        pair.blast_sent = sent[5].get<std::uint64_t>();
        pair.arrived = seen[6].get<std::uint32_t>();
        pair.small_arrived = seen[7].get<std::uint32_t>();
        pair.blast_arrived = seen[8].get<std::uint64_t>();
        pair.rate_gbps = seen[9].get<double>();
        pair.blast_overrun = seen[10].get<std::uint64_t>();
        pairs.push_back(pair);
      }
    }
    return pairs;
  }

  Port& port_;
  ControlChannel& control_;
  const std::uint32_t slot_bytes_;
  const std::uint32_t job_;
  const CheckOptions& options_;
  Rank source_ = 0;
  Heard heard_;
  std::vector<Time> sent_at_;
  std::vector<double> trips_;
  std::vector<PairProbe> mine_;
  std::vector<Heard> seen_;
};

}  // namespace

bool PairProbe::good() const {
  constexpr std::uint32_t kTolerated = 2;  // however few the probes are
  return works() && (probes_lost() <= kTolerated || loss() < 0.05);
}

std::uint32_t PairProbe::probes_lost() const {
  return sent - std::min(sent, arrived);  // duplicates may arrive
}

double PairProbe::loss() const {
  return sent == 0 ? 0 : static_cast<double>(probes_lost()) / sent;
}

double PairProbe::blast_loss() const {
  if (blast_sent == 0) return 0;
  const std::uint64_t found = std::min(blast_sent, blast_arrived + blast_overrun);
  return 1 - static_cast<double>(found) / static_cast<double>(blast_sent);
}

std::string likely_cause(const PairProbe& pair, std::uint32_t mtu, std::uint16_t udp_port) {
  if (pair.arrived == 0 && pair.small_arrived > 0) {
    return fmt::format(
        "small packets pass, full ones do not: the path's MTU is below {}; lower "
        "the interface's MTU or raise the path's",
        mtu);
  }
  if (pair.arrived == 0) {
    return fmt::format(
        "nothing arrives: open UDP to rank {} (port {} in this run) in its "
        "firewall or security group",
        pair.to, udp_port);
  }
  if (pair.answered == 0) {
    return fmt::format(
        "probes arrive and no reply comes back: UDP from rank {} to rank {} is "
        "blocked",
        pair.to, pair.from);
  }
  return fmt::format("{} of {} probes were lost: a congested or faulty link", pair.probes_lost(),
                     pair.sent);
}

Result<std::vector<PairProbe>> probe_pairs(Connection& connection, const CheckOptions& options) {
  return Prober(connection, options).run();
}

}  // namespace tarpon
