// TCP between every two ranks, at the level of detail that decides when an AllReduce ends.
//
//   window      slow start from 10 segments (RFC 6928) to the first loss; then x 0.7 at a loss,
//   once
//               per flight, and + 0.53 segments a round trip (CUBIC where it is as fair as Reno, as
//               in data centres: RFC 9438, 4.3); at most 4 MiB (Linux, tcp_wmem). Connections stay
//               open from one operation to the next.
//   loss        is known when an acknowledgement of something sent later returns (SACK, RFC 6675,
//               RACK): a round trip. What was lost is sent again first.
//   tail of a   nothing later tells of it. TailLoss::probe, Linux' default: the last segment is
//   sent burst       again after 2 round trips + 2 jiffies of 4 ms, or + 200 ms if it was alone
//   under way
//               (RFC 8985, 7.2; tcp_schedule_loss_probe), and its acknowledgement tells of the
//               rest. TailLoss::rto: a retransmission timeout, as when the probe is lost too: a
//               round trip + 200 ms (TCP_RTO_MIN of Linux), doubled each time; the window falls to
//               one segment.
//   acks        take the link's delay back and no bandwidth; they are not lost.
//
// A message is delivered when it and all earlier messages of its connection have arrived.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "tools/scale/senders.h"
#include "tools/scale/trains.h"
#include "transport/simulated/fabric.h"

namespace tarpon::scale {

enum class TailLoss : std::uint8_t { probe, rto };

struct ReliableOptions {
  std::uint32_t ranks = 2;
  Trains trains;
  Duration return_delay{};  // of an acknowledgement
  TailLoss tail_loss = TailLoss::probe;
};

struct ReliableStatistics {
  std::uint64_t packets = 0;        // sent, as they are on the wire
  std::uint64_t retransmitted = 0;  // of them
  std::uint64_t probes = 0;
  std::uint64_t timeouts = 0;
};

/// Single-threaded.
class ReliableFlows {
 public:
  /// A message is complete at its receiver.
  using Delivered = std::function<void(Time now, Rank from, Rank to, std::uint32_t step)>;
  /// The last bytes of a message have left its sender; repairs may follow.
  using SentAll = std::function<void(Time now, Rank from, std::uint32_t step)>;
  using Signalled = std::function<void(Time now, Rank from, Rank to, std::uint32_t value)>;

  /// `fabric`, `loss` and `senders` are lent and must outlive this.
  ReliableFlows(const ReliableOptions& options, Fabric& fabric, LossDraw& loss, Senders& senders);

  void on_delivered(Delivered delivered) { delivered_ = std::move(delivered); }

  void on_sent(SentAll sent) { sent_ = std::move(sent); }

  void on_signalled(Signalled signalled) { signalled_ = std::move(signalled); }

  void send(Time now, Rank from, Rank to, std::uint64_t bytes, std::uint32_t step);

  /// Tells `to` a number. It leaves at `time`, which is now or later, and takes what an
  /// acknowledgement takes.
  void signal(Time time, Rank from, Rank to, std::uint32_t value);

  /// Runs until nothing is under way any more; returns the time of the last event.
  Time run(Time now);

  const ReliableStatistics& statistics() const { return statistics_; }

 private:
  struct Message {
    std::uint32_t step;
    std::uint64_t unsent;
    std::uint64_t missing;  // not arrived
  };
  struct Lost {
    std::uint64_t number;  // of its train; an acknowledgement of `shown_by` or later tells of it
    std::uint64_t shown_by;
    std::uint64_t message;
    std::uint64_t bytes;
  };
  struct Connection {
    Rank from = 0, to = 0;
    double window = 0, threshold = 0;
    double round_trip_ns = 0;  // smoothed, RFC 6298
    std::uint64_t in_flight = 0;
    std::uint64_t next_number = 0;
    std::uint64_t recovery = 0;  // losses of trains below it have been answered
    std::uint64_t first_message = 0;
    std::uint64_t next_unsent = 0;  // message
    std::vector<Message> messages{};
    std::vector<Lost> lost{};     // not known to the sender
    std::vector<Lost> repairs{};  // known, to be sent again
    Time last_sent{};
    std::uint32_t attempts = 0;  // probes and timeouts since the last acknowledgement
    bool queued = false;         // in the sender's list of those that may send
    bool timer = false;
    bool forced = false;  // the next train goes whatever the window says: probe, timeout
  };
  struct Train {
    std::uint32_t connection;
    std::uint32_t lost_packets;
    std::uint64_t number, message, bytes;
    Time sent;
  };
  struct Ack {
    std::uint32_t connection;
    std::uint64_t number, bytes;
    Time sent;
  };

  struct Signal {
    Rank from, to;
    std::uint32_t value;
  };

  std::uint32_t connection_of(Rank from, Rank to);
  void offer(Time now, std::uint32_t index);
  bool may_send(const Connection& connection) const;
  void pump(Time now, Rank rank);
  void send_train(Time now, std::uint32_t index);
  void emit(Time now, std::uint32_t index, std::uint64_t message, std::uint64_t bytes);
  void on_outcome(const Fabric::Outcome& outcome);
  void note_lost(Time now, std::uint32_t index, const Train& train, std::uint64_t bytes,
                 bool whole);
  void deliver(Time now, Connection& connection, std::uint64_t message, std::uint64_t bytes);
  void on_ack(Time now, const Ack& ack);
  void grow(Connection& connection, std::uint64_t acked, bool limited) const;
  void reduce(Connection& connection, const Lost& lost) const;
  Duration patience(const Connection& connection) const;
  void probe_last(Connection& connection);
  void time_out(Connection& connection);
  void on_timer(Time now, std::uint32_t index);

  ReliableOptions options_;
  Fabric& fabric_;
  LossDraw& loss_;
  Senders& senders_;
  Delivered delivered_;
  SentAll sent_;
  Signalled signalled_;
  std::vector<std::uint32_t> index_;              // ranks x ranks, 1 + connection
  std::deque<Connection> connections_;            // stable addresses
  std::vector<std::deque<std::uint32_t>> ready_;  // by rank
  std::vector<Train> trains_;                     // by label
  std::vector<std::uint64_t> free_;
  DelayLine<Ack> acks_;
  Timers<std::uint32_t> timers_;
  Timers<Signal> signals_;
  ReliableStatistics statistics_;
};

}  // namespace tarpon::scale
