#include "tools/scale/bounded_flow.h"

#include <algorithm>
#include <cmath>

#include "tools/scale/quantiles.h"

namespace tarpon::scale {
namespace {

constexpr std::uint8_t kScatter = 0;
constexpr std::uint8_t kGather = 1;
constexpr std::uint32_t kLeastMarks = 4;  // so that hardly any message loses all its marks

/// The time that a stage or an operation would have taken for everything, if the share `arrived`
/// took `time`; at most twice `time`.
Duration grown(Duration time, double arrived) {
  constexpr double kMaxGrowth = 2;
  const double factor = std::min(kMaxGrowth, 1 / std::max(arrived, 1e-9));
  return Duration(static_cast<std::int64_t>(static_cast<double>(time.count()) * factor));
}

}  // namespace

BoundedFlow::BoundedFlow(const BoundedOptions& options, Fabric& fabric, LossDraw& loss,
                         Senders& senders)
    : options_(options),
      fabric_(fabric),
      loss_(loss),
      senders_(senders),
      shard_bytes_((options.bytes + options.ranks - 1) / options.ranks),
      shard_packets_(options.trains.packets_of(shard_bytes_)),
      slots_((shard_packets_ + options.trains.packets - 1) / options.trains.packets),
      expected_(std::uint64_t{shard_packets_} * (options.ranks - 1)) {}

std::uint32_t BoundedFlow::slot_packets(std::uint32_t slot) const {
  return std::min(options_.trains.packets, shard_packets_ - slot * options_.trains.packets);
}

std::uint64_t BoundedFlow::wire_bytes(std::uint32_t slot, std::uint32_t packets) const {
  const std::uint64_t first = slot * options_.trains.bytes();
  const std::uint64_t data = std::min(shard_bytes_ - first, options_.trains.bytes());
  const std::uint64_t sent = std::min(data, std::uint64_t{packets} * options_.trains.payload);
  return options_.trains.wire_bytes(sent);
}

void BoundedFlow::reset(Time start, const std::vector<Episode>& episodes) {
  const std::uint32_t ranks = options_.ranks;
  std::vector<Duration> begins;
  begins.reserve(episodes.size());
  for (const Episode& episode : episodes) begins.push_back(begin_of(episode));
  clock_ = start + median(begins);
  const Time scatter_end = clock_ + limits_.whole - limits_.gather;
  late_.assign(ranks, 0);
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    inbox_[stage].assign(ranks, {});
    marked_[stage].assign(std::size_t{ranks} * ranks, 0);
    next_[stage].assign(std::size_t{ranks} * ranks, 0);
    out_[stage].assign(ranks, {});
  }
  present_.assign(std::size_t{ranks} * slots_, 0);
  fraction_.assign(std::size_t{ranks} * slots_, 0);
  value_.assign(ranks, 0);
  ready_.assign(ranks, {});
  idle_.assign(ranks, {});
  repairs_.assign(ranks, {});
  under_way_.assign(ranks, 0);
  waiting_.assign(ranks, {});
  open_ranks_ = 0;
  for (Rank rank = 0; rank < ranks; ++rank) {
    late_[rank] = !limits_.exact && start + begin_of(episodes[rank]) > scatter_end;
    if (late_[rank] != 0) continue;
    ++open_ranks_;
    for (std::uint32_t k = 1; k < ranks; ++k) {
      const auto peer = static_cast<Rank>((rank + ranks - k) % ranks);
      out_[kScatter][rank].push_back({peer, kScatter});
      idle_[rank].push_back(peer);
    }
  }
}

BoundedOutcome BoundedFlow::operate(Time start, const Limits& limits,
                                    const std::vector<Episode>& episodes) {
  limits_ = limits;
  reset(start, episodes);
  senders_.begin(start, episodes);
  finished_ = start;
  Duration last{};
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    last = std::max(last, episodes[rank].end());
    if (late_[rank] != 0) continue;
    timers_.add(start + begin_of(episodes[rank]), {Kind::enter, rank, kScatter});
  }
  // If all are late there is nothing to wait for but them.
  if (open_ranks_ == 0) finished_ = start + last;
  run(start);
  BoundedOutcome result = outcome(start, episodes);
  result.idle = std::max(result.idle, start + last);
  return result;
}

void BoundedFlow::run(Time now) {
  for (;;) {
    const Time next = std::min(
        {fabric_.next_event(), credits_.next(), requests_.next(), senders_.next(), timers_.next()});
    if (next == kNever) break;
    now = next;
    for (const Fabric::Outcome& one : fabric_.advance(now)) on_outcome(one);
    while (credits_.next() <= now) give_back(now, credits_.pop());
    while (requests_.next() <= now) {
      const Train train = requests_.pop();
      if (inbox_[train.stage][train.to].close != Close::open) continue;
      repairs_[train.from].push_back(train);
      pump(now, train.from);
    }
    while (senders_.next() <= now) pump(now, senders_.due());
    while (timers_.next() <= now) on_timer(now, timers_.pop());
  }
}

void BoundedFlow::on_timer(Time now, const Timer& timer) {
  switch (timer.kind) {
    case Kind::enter:
      start_stage(now, timer.rank, kScatter);
      return pump(now, timer.rank);
    case Kind::early:
      return close(now, timer.rank, timer.stage, Close::early);
    case Kind::bound:
      return close(now, timer.rank, timer.stage, Close::bound);
  }
}

void BoundedFlow::start_stage(Time now, Rank rank, std::uint8_t stage) {
  Inbox& inbox = inbox_[stage][rank];
  inbox.started = true;
  if (!limits_.exact) {
    const Time end = clock_ + limits_.whole - (stage == kScatter ? limits_.gather : Duration{});
    timers_.add(std::max(now, end), {Kind::bound, rank, stage});
  }
  check(now, rank, stage);
}

void BoundedFlow::check(Time now, Rank rank, std::uint8_t stage) {
  Inbox& inbox = inbox_[stage][rank];
  if (!inbox.started || inbox.close != Close::open) return;
  if (inbox.arrived == expected_) return close(now, rank, stage, Close::complete);
  if (limits_.exact || inbox.waiting || inbox.marks + 1 < options_.ranks) return;
  if (limits_.early_wait[stage] == Duration{}) return;
  inbox.waiting = true;
  timers_.add(now + limits_.early_wait[stage], {Kind::early, rank, stage});
}

void BoundedFlow::close(Time now, Rank rank, std::uint8_t stage, Close how) {
  Inbox& inbox = inbox_[stage][rank];
  if (inbox.close != Close::open) return;
  inbox.close = how;
  inbox.closed_at = now;
  if (stage == kScatter) return close_scatter(now, rank);
  finished_ = std::max(finished_, now);
  if (--open_ranks_ > 0) return;
  // No rank needs the remaining packets; those on the wire still arrive.
  for (auto& out : out_) out.assign(options_.ranks, {});
  repairs_.assign(options_.ranks, {});
  waiting_.assign(options_.ranks, {});
  timers_.clear();
}

void BoundedFlow::close_scatter(Time now, Rank rank) {
  for (std::uint32_t slot = 0; slot < slots_; ++slot) {
    if (fraction_[slot_at(rank, slot)] <= 0) slot_ready(rank, slot);
    value_[rank] += slot_packets(slot) * static_cast<double>(fraction_[slot_at(rank, slot)]);
  }
  start_stage(now, rank, kGather);
  pump(now, rank);
}

void BoundedFlow::slot_ready(Rank rank, std::uint32_t slot) {
  const std::size_t at = slot_at(rank, slot);
  const double peers = static_cast<double>(present_[at]) / slot_packets(slot);
  fraction_[at] = static_cast<float>((1 + peers) / options_.ranks);
  ready_[rank].push_back(slot);
  for (const Rank peer : idle_[rank]) out_[kGather][rank].push_back({peer, kGather});
  idle_[rank].clear();
}

void BoundedFlow::pump(Time now, Rank rank) {
  const auto work = [&] {
    return !repairs_[rank].empty() || !out_[kScatter][rank].empty() || !out_[kGather][rank].empty();
  };
  while (work() && senders_.may_send(rank, now)) {
    if (!send_repair(now, rank)) send_next(now, rank);
  }
}

bool BoundedFlow::send_repair(Time now, Rank rank) {
  if (repairs_[rank].empty()) return false;
  const Train train = repairs_[rank].front();
  repairs_[rank].pop_front();
  inbox_[train.stage][train.to].lost -= train.packets;
  emit(now, train);
  return true;
}

bool BoundedFlow::send_next(Time now, Rank rank) {
  auto& out = out_[kScatter][rank].empty() ? out_[kGather][rank] : out_[kScatter][rank];
  const Outgoing next = out.front();
  if (under_way_[next.rank] >= options_.credit_bytes) {
    waiting_[next.rank].push_back({rank, next.stage});
    out.pop_front();
    return false;
  }
  bool more = false;
  send_slot(now, rank, next, more);
  if (!more) out.pop_front();
  return true;
}

void BoundedFlow::send_slot(Time now, Rank from, const Outgoing& out, bool& more) {
  std::uint32_t& next = next_[out.stage][pair(from, out.rank)];
  const std::uint32_t slot = out.stage == kScatter ? next : ready_[from][next];
  ++next;
  more = next < (out.stage == kScatter ? slots_ : ready_[from].size());
  if (!more && next < slots_) idle_[from].push_back(out.rank);
  Train train{from, out.rank, slot, slot_packets(slot), 0, out.stage, false, false};
  under_way_[out.rank] += wire_bytes(slot, train.packets);
  emit(now, train);
}

/// Whether one of the last 1 % of the message's packets is in the train and not lost.
bool BoundedFlow::carries_mark(const Train& train) {
  const std::uint32_t marked =
      std::min(shard_packets_, std::max(kLeastMarks, shard_packets_ / 100));
  const std::uint32_t position =
      train.stage == kScatter ? train.slot : next_[kGather][pair(train.from, train.to)] - 1;
  // In stage 1 slots leave in any order: the last to leave carry the marks.
  const std::uint32_t before = std::min(shard_packets_, position * options_.trains.packets);
  const std::uint32_t end = std::min(shard_packets_, before + train.packets);
  const std::uint32_t first = std::max(before, shard_packets_ - marked);
  if (first >= end) return false;
  if (train.lost == 0) return true;
  const double share = static_cast<double>(train.lost) / train.packets;
  return !loss_.random().chance(std::pow(share, end - first));
}

void BoundedFlow::emit(Time now, const Train& planned) {
  if (free_.empty()) {
    free_.push_back(trains_.size());
    trains_.emplace_back();
  }
  const std::uint64_t label = free_.back();
  free_.pop_back();
  Train& train = trains_[label];
  train = planned;
  train.lost = loss_.lost(train.packets);
  train.mark = !train.repair && carries_mark(train);
  const auto wire = static_cast<std::uint32_t>(wire_bytes(train.slot, train.packets));
  packets_sent_ += train.packets;
  senders_.sent(train.from, now, wire);
  fabric_.send(now, train.from, train.to, wire, label);
}

void BoundedFlow::give_back(Time now, const Credit& credit) {
  under_way_[credit.rank] -= credit.bytes;
  auto& waiting = waiting_[credit.rank];
  while (!waiting.empty() && under_way_[credit.rank] < options_.credit_bytes) {
    const Outgoing sender = waiting.front();
    waiting.pop_front();
    out_[sender.stage][sender.rank].push_front({credit.rank, sender.stage});
    pump(now, sender.rank);
  }
}

void BoundedFlow::on_outcome(const Fabric::Outcome& outcome) {
  const Train train = trains_[outcome.label];
  free_.push_back(outcome.label);
  if (!train.repair) {
    credits_.add(outcome.time + options_.return_delay,
                 {train.to, wire_bytes(train.slot, train.packets)});
  }
  const bool dropped = outcome.fate != LinkFate::delivered;
  const std::uint32_t lost = dropped ? train.packets : train.lost;
  if (lost > 0) on_lost(outcome.time, train, lost);
  if (lost < train.packets) on_arrived(outcome.time, train, train.packets - lost);
}

bool BoundedFlow::repairs(std::uint8_t stage) const {
  if (limits_.exact || options_.repair == Repair::all) return true;
  return options_.repair == Repair::gather && stage == kGather;
}

void BoundedFlow::on_lost(Time now, const Train& train, std::uint32_t packets) {
  Inbox& inbox = inbox_[train.stage][train.to];
  if (inbox.close != Close::open || late_[train.to] != 0) return;
  inbox.lost += packets;
  if (!repairs(train.stage)) return;
  // The gap is seen when the next packet comes, and the request goes back.
  Train repair = train;
  repair.packets = packets;
  repair.repair = true;
  requests_.add(now + 2 * options_.return_delay, repair);
}

void BoundedFlow::on_arrived(Time now, const Train& train, std::uint32_t packets) {
  Inbox& inbox = inbox_[train.stage][train.to];
  if (inbox.close != Close::open || late_[train.to] != 0) return;
  std::uint8_t& marked = marked_[train.stage][pair(train.to, train.from)];
  if (train.mark && marked == 0) {
    marked = 1;
    ++inbox.marks;
  }
  inbox.arrived += packets;
  const std::size_t at = slot_at(train.stage == kScatter ? train.to : train.from, train.slot);
  if (train.stage == kScatter) {
    present_[at] += packets;
    if (present_[at] == slot_packets(train.slot) * (options_.ranks - 1)) {
      slot_ready(train.to, train.slot);
      pump(now, train.to);
    }
  } else {
    value_[train.to] += packets * static_cast<double>(fraction_[at]);
  }
  check(now, train.to, train.stage);
}

StageOutcome BoundedFlow::stage_outcome(std::size_t stage) const {
  StageOutcome result;
  std::vector<Duration> closed;
  std::uint64_t lost = 0, cut = 0, cut_early = 0;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (late_[rank] != 0) continue;
    const Inbox& inbox = inbox_[stage][rank];
    const std::uint64_t missing = expected_ - inbox.arrived - inbox.lost;
    lost += inbox.lost;
    cut += missing;
    if (inbox.close == Close::early) {
      ++result.early;
      cut_early += missing;
    }
    if (inbox.close == Close::bound) ++result.bound;
    closed.push_back(inbox.closed_at - clock_);
  }
  const double packets =
      static_cast<double>(expected_) * static_cast<double>(std::max<std::size_t>(1, closed.size()));
  result.lost = static_cast<double>(lost) / packets;
  result.cut = static_cast<double>(cut) / packets;
  result.cut_early = static_cast<double>(cut_early) / packets;
  result.closed = std::max(Duration{}, median(closed));
  return result;
}

void BoundedFlow::count_losses(BoundedOutcome& result) const {
  const double whole = static_cast<double>(shard_packets_) * options_.ranks;
  const double in_time = options_.ranks - result.late;
  // What late ranks contribute or own does not count in lost_in_time.
  const double had = in_time * in_time / (static_cast<double>(options_.ranks) * options_.ranks);
  std::vector<Duration> times, scatters, gathers;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (late_[rank] != 0) continue;
    const double present = value_[rank] / whole;
    result.lost_mean += std::max(0.0, 1 - present) / in_time;
    result.lost_worst = std::max(result.lost_worst, 1 - present);
    const double lost = std::max(0.0, had - present);
    result.lost_in_time = std::max(result.lost_in_time, lost);
    const Inbox& scatter = inbox_[0][rank];
    const Inbox& gather = inbox_[1][rank];
    const auto share = [this](const Inbox& inbox) {
      return static_cast<double>(inbox.arrived) / static_cast<double>(expected_);
    };
    times.push_back(grown(gather.closed_at - clock_, 1 - lost));
    scatters.push_back(grown(scatter.closed_at - clock_, share(scatter)));
    gathers.push_back(grown(gather.closed_at - scatter.closed_at, share(gather)));
  }
  result.median_time = std::max(Duration{}, median(times));
  result.scatter = std::max(Duration{}, median(scatters));
  result.gather = median(gathers);
}

BoundedOutcome BoundedFlow::outcome(Time start, const std::vector<Episode>& episodes) const {
  BoundedOutcome result;
  result.completion = finished_ - start;
  result.idle = finished_;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (late_[rank] == 0) continue;
    ++result.late;
    result.last_late_start =
        std::max(result.last_late_start, start + begin_of(episodes[rank]) - clock_);
  }
  count_losses(result);
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    result.stages[stage] = stage_outcome(stage);
  }
  return result;
}

}  // namespace tarpon::scale
