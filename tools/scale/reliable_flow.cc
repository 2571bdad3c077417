#include "tools/scale/reliable_flow.h"

#include <algorithm>

namespace tarpon::scale {
namespace {

constexpr double kInitialSegments = 10;
constexpr double kReduction = 0.7;
constexpr double kGrowth = 0.53;  // 3 (1 - 0.7) / (1 + 0.7) segments a round trip
constexpr double kLargestWindow = 4 << 20;
constexpr Duration kLeastTimeout = 200ms;
constexpr Duration kTwoJiffies = 8ms;
constexpr Duration kLongestTimeout = 120s;

}  // namespace

ReliableFlows::ReliableFlows(const ReliableOptions& options, Fabric& fabric, LossDraw& loss,
                             Senders& senders)
    : options_(options),
      fabric_(fabric),
      loss_(loss),
      senders_(senders),
      index_(std::size_t{options.ranks} * options.ranks),
      ready_(options.ranks) {}

std::uint32_t ReliableFlows::connection_of(Rank from, Rank to) {
  std::uint32_t& index = index_[std::size_t{from} * options_.ranks + to];
  if (index == 0) {
    const double window = kInitialSegments * options_.trains.payload;
    connections_.push_back({.from = from, .to = to, .window = window, .threshold = kLargestWindow});
    index = static_cast<std::uint32_t>(connections_.size());
  }
  return index - 1;
}

void ReliableFlows::send(Time now, Rank from, Rank to, std::uint64_t bytes, std::uint32_t step) {
  const std::uint32_t index = connection_of(from, to);
  connections_[index].messages.push_back({step, bytes, bytes});
  offer(now, index);
}

void ReliableFlows::signal(Time time, Rank from, Rank to, std::uint32_t value) {
  signals_.add(time + options_.return_delay, {from, to, value});
}

bool ReliableFlows::may_send(const Connection& connection) const {
  const bool work = !connection.repairs.empty() ||
                    connection.next_unsent - connection.first_message < connection.messages.size();
  const double room = connection.window - static_cast<double>(connection.in_flight);
  return work &&
         (connection.forced || connection.in_flight == 0 || room >= options_.trains.payload);
}

void ReliableFlows::offer(Time now, std::uint32_t index) {
  Connection& connection = connections_[index];
  if (connection.queued || !may_send(connection)) return;
  connection.queued = true;
  ready_[connection.from].push_back(index);
  pump(now, connection.from);
}

void ReliableFlows::pump(Time now, Rank rank) {
  std::deque<std::uint32_t>& ready = ready_[rank];
  while (!ready.empty() && senders_.may_send(rank, now)) {
    const std::uint32_t index = ready.front();
    ready.pop_front();
    if (may_send(connections_[index])) send_train(now, index);
    connections_[index].queued = may_send(connections_[index]);
    if (connections_[index].queued) ready.push_back(index);
  }
}

void ReliableFlows::send_train(Time now, std::uint32_t index) {
  Connection& connection = connections_[index];
  connection.forced = false;
  const std::uint64_t segment = options_.trains.payload;
  const double room = connection.window - static_cast<double>(connection.in_flight);
  const std::uint64_t segments =
      room < static_cast<double>(segment) ? 1 : static_cast<std::uint64_t>(room) / segment;
  const std::uint64_t limit = std::min(options_.trains.bytes(), segments * segment);
  if (!connection.repairs.empty()) {
    Lost& lost = connection.repairs.front();
    const std::uint64_t bytes = std::min(limit, lost.bytes);
    const std::uint64_t message = lost.message;
    lost.bytes -= bytes;
    if (lost.bytes == 0) connection.repairs.erase(connection.repairs.begin());
    statistics_.retransmitted += options_.trains.packets_of(bytes);
    return emit(now, index, message, bytes);
  }
  Message& message = connection.messages[connection.next_unsent - connection.first_message];
  const std::uint64_t bytes = std::min(limit, message.unsent);
  const std::uint64_t number = connection.next_unsent;
  const std::uint32_t step = message.step;
  message.unsent -= bytes;
  const bool whole = message.unsent == 0;
  if (whole) ++connection.next_unsent;
  emit(now, index, number, bytes);
  if (whole && sent_) sent_(now, connection.from, step);
}

void ReliableFlows::emit(Time now, std::uint32_t index, std::uint64_t message,
                         std::uint64_t bytes) {
  Connection& connection = connections_[index];
  const std::uint32_t packets = options_.trains.packets_of(bytes);
  const std::uint32_t wire = options_.trains.wire_bytes(bytes);
  if (free_.empty()) {
    free_.push_back(trains_.size());
    trains_.emplace_back();
  }
  const std::uint64_t label = free_.back();
  free_.pop_back();
  trains_[label] = {index, loss_.lost(packets), connection.next_number++, message, bytes, now};
  connection.in_flight += bytes;
  connection.last_sent = now;
  statistics_.packets += packets;
  senders_.sent(connection.from, now, wire);
  fabric_.send(now, connection.from, connection.to, wire, label);
}

void ReliableFlows::on_outcome(const Fabric::Outcome& outcome) {
  const Train train = trains_[outcome.label];
  free_.push_back(outcome.label);
  if (outcome.fate != LinkFate::delivered) {
    return note_lost(outcome.time, train.connection, train, train.bytes, true);
  }
  const std::uint64_t segment = options_.trains.payload;
  const std::uint64_t lost = std::min(train.bytes, train.lost_packets * segment);
  if (lost > 0) note_lost(outcome.time, train.connection, train, lost, lost == train.bytes);
  if (lost == train.bytes) return;
  acks_.add(outcome.time + options_.return_delay,
            {train.connection, train.number, train.bytes - lost, train.sent});
  deliver(outcome.time, connections_[train.connection], train.message, train.bytes - lost);
}

void ReliableFlows::note_lost(Time now, std::uint32_t index, const Train& train,
                              std::uint64_t bytes, bool whole) {
  Connection& connection = connections_[index];
  // A later packet of the train shows the loss of an earlier one, but none shows that of the last.
  const bool last =
      whole || loss_.random().chance(static_cast<double>(bytes) / static_cast<double>(train.bytes));
  connection.lost.push_back({train.number, train.number + (last ? 1 : 0), train.message, bytes});
  if (connection.timer) return;
  connection.timer = true;
  timers_.add(std::max(now, connection.last_sent + patience(connection)), index);
}

void ReliableFlows::deliver(Time now, Connection& connection, std::uint64_t message,
                            std::uint64_t bytes) {
  connection.messages[message - connection.first_message].missing -= bytes;
  while (!connection.messages.empty() && connection.messages.front().missing == 0) {
    const std::uint32_t step = connection.messages.front().step;
    const Rank from = connection.from, to = connection.to;
    connection.messages.erase(connection.messages.begin());
    ++connection.first_message;
    // The callback may open connections: `connection` lives in a deque of stable addresses.
    delivered_(now, from, to, step);
  }
}

void ReliableFlows::grow(Connection& connection, std::uint64_t acked, bool limited) const {
  if (!limited) return;
  const auto bytes = static_cast<double>(acked);
  if (connection.window < connection.threshold) {
    connection.window += bytes;
  } else {
    connection.window += kGrowth * options_.trains.payload * bytes / connection.window;
  }
  connection.window = std::min(connection.window, kLargestWindow);
}

void ReliableFlows::reduce(Connection& connection, const Lost& lost) const {
  if (lost.number < connection.recovery) return;
  connection.recovery = connection.next_number;
  connection.window = std::max(connection.window * kReduction, 2.0 * options_.trains.payload);
  connection.threshold = connection.window;
}

void ReliableFlows::on_ack(Time now, const Ack& ack) {
  Connection& connection = connections_[ack.connection];
  const bool limited = 2.0 * static_cast<double>(connection.in_flight) >= connection.window;
  connection.in_flight -= ack.bytes;
  connection.attempts = 0;
  const auto sample = static_cast<double>((now - ack.sent).count());
  double& smoothed = connection.round_trip_ns;
  smoothed = smoothed <= 0 ? sample : smoothed + (sample - smoothed) / 8;
  grow(connection, ack.bytes, limited);
  std::vector<Lost>& lost = connection.lost;
  const auto known = [&](const Lost& one) { return one.shown_by <= ack.number; };
  for (const Lost& one : lost) {
    if (!known(one)) continue;
    reduce(connection, one);
    connection.in_flight -= one.bytes;
    connection.repairs.push_back(one);
  }
  lost.erase(std::remove_if(lost.begin(), lost.end(), known), lost.end());
  offer(now, ack.connection);
}

Duration ReliableFlows::patience(const Connection& connection) const {
  const Duration base = 2 * options_.return_delay;
  const Duration round_trip =
      std::max(base, Duration(static_cast<std::int64_t>(connection.round_trip_ns)));
  if (options_.tail_loss == TailLoss::probe && connection.attempts == 0) {
    const bool alone = connection.in_flight <= options_.trains.payload;
    return 2 * round_trip + (alone ? kLeastTimeout : kTwoJiffies);
  }
  const std::uint32_t timeouts =
      connection.attempts - (options_.tail_loss == TailLoss::probe ? 1 : 0);
  return std::min(kLongestTimeout, (round_trip + kLeastTimeout) * (1 << std::min(timeouts, 10u)));
}

void ReliableFlows::probe_last(Connection& connection) {
  ++statistics_.probes;
  Lost& last = connection.lost.back();
  reduce(connection, last);
  Lost again = last;
  again.bytes = std::min<std::uint64_t>(last.bytes, options_.trains.payload);
  last.bytes -= again.bytes;
  if (last.bytes == 0) connection.lost.pop_back();
  connection.in_flight -= again.bytes;
  connection.repairs.push_back(again);
}

void ReliableFlows::time_out(Connection& connection) {
  ++statistics_.timeouts;
  const double segment = options_.trains.payload;
  connection.threshold = std::max(connection.window / 2, 2 * segment);
  connection.window = segment;
  connection.recovery = connection.next_number;
  for (const Lost& one : connection.lost) {
    connection.in_flight -= one.bytes;
    connection.repairs.push_back(one);
  }
  connection.lost.clear();
}

void ReliableFlows::on_timer(Time now, std::uint32_t index) {
  Connection& connection = connections_[index];
  connection.timer = false;
  if (connection.lost.empty()) return;
  connection.timer = true;
  const Time due = connection.last_sent + patience(connection);
  if (due > now) return timers_.add(due, index);
  const bool probe = options_.tail_loss == TailLoss::probe && connection.attempts == 0;
  ++connection.attempts;
  if (probe) {
    probe_last(connection);
  } else {
    time_out(connection);
  }
  connection.forced = true;
  connection.last_sent = now;
  timers_.add(now + patience(connection), index);
  offer(now, index);
}

Time ReliableFlows::run(Time now) {
  for (;;) {
    const Time next = std::min(
        {fabric_.next_event(), acks_.next(), timers_.next(), signals_.next(), senders_.next()});
    if (next == kNever) return now;
    now = next;
    for (const Fabric::Outcome& outcome : fabric_.advance(now)) on_outcome(outcome);
    while (acks_.next() <= now) on_ack(now, acks_.pop());
    while (senders_.next() <= now) pump(now, senders_.due());
    while (timers_.next() <= now) on_timer(now, timers_.pop());
    while (signals_.next() <= now) {
      const Signal signal = signals_.pop();
      signalled_(now, signal.from, signal.to, signal.value);
    }
  }
}

}  // namespace tarpon::scale
