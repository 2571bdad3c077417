// One bounded Transpose AllReduce after another, as Tarpon runs it: no rounds, no barrier.
//
// Stage 0 (scatter): each rank sends every owner its shard, in the order rank-1, rank-2, ...
// Stage 1 (gather): an owner sends its reduced shard to all, slot by slot (a slot of the model is a
// train). A slot that holds every contribution may leave at once, the rest when stage 0 closes at
// the owner. Packets of stage 0 go first.
//
// A stage closes at a rank when all its packets have arrived; or a while after the tail marks of
// all senders have arrived (the last 1 % of the packets of each message have them, 4 at least); or
// by the bound of the operation. The bound counts from the clock, when half of the ranks have
// started. Stage 1 ends by the bound, stage 0 one gather time before it. Later packets are cut.
// Lost packets are asked for and sent again while the stage is open. A rank that starts after the
// end of stage 0 is late: its shard is void, and it fetches the result.
//
// Incast: a receiver allows `credit_bytes` on the way to it, from all senders together. The credit
// of packets that arrived or were lost returns after the link's delay.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "tools/scale/senders.h"
#include "tools/scale/trains.h"
#include "transport/simulated/fabric.h"

namespace tarpon::scale {

inline constexpr std::size_t kStages = 2;

/// In which stages lost packets are sent again.
enum class Repair : std::uint8_t { none, gather, all };

struct BoundedOptions {
  std::uint32_t ranks = 2;
  std::uint64_t bytes = 0;
  Trains trains;
  Duration return_delay{};  // of credit and of requests
  std::uint64_t credit_bytes = 0;
  Repair repair = Repair::all;
};

/// When the stages of one operation close.
struct Limits {
  bool exact = false;  // all losses are repaired and there is no bound: none is known yet
  Duration whole{};    // bound of the operation, from its clock
  Duration gather{};   // stage 0 ends this long before the operation
  std::array<Duration, kStages> early_wait{};  // after the last tail mark; 0: no early close
};

struct StageOutcome {
  Duration closed{};        // median over ranks: from the clock to the stage's end
  double lost = 0;          // share of the stage's packets that the network lost, unrepaired
  double cut = 0;           // share that was not there when the stage closed, though not lost
  double cut_early = 0;     // the same, of the stages that closed early
  std::uint32_t early = 0;  // ranks that closed early,
  std::uint32_t bound = 0;  // or by the bound
};

struct BoundedOutcome {
  Duration completion{};    // until the last rank that is not late has closed stage 1
  Time idle;                // when nothing of the operation is under way any more
  double lost_mean = 0;     // share of contributions that results lack: mean of ranks not late
  double lost_worst = 0;    // the same of the worst of them
  double lost_in_time = 0;  // the same without what late ranks cost
  std::uint32_t late = 0;
  Duration last_late_start{};  // from the clock to the start of the last late rank
  // Medians over the ranks that are not late. If packets are missing, the time is divided by the
  // share that arrived, and at most doubled.
  Duration median_time{};  // from the clock to the end
  Duration scatter{};      // from the clock to the end of stage 0
  Duration gather{};       // from there to the end of stage 1
  std::array<StageOutcome, kStages> stages;
};

/// Single-threaded.
class BoundedFlow {
 public:
  /// `fabric`, `loss` and `senders` are lent and must outlive this.
  BoundedFlow(const BoundedOptions& options, Fabric& fabric, LossDraw& loss, Senders& senders);

  /// REQUIRES: `start` is not before the last one's `idle`.
  BoundedOutcome operate(Time start, const Limits& limits, const std::vector<Episode>& episodes);

  std::uint64_t packets() const { return packets_sent_; }

 private:
  enum class Close : std::uint8_t { open, complete, early, bound };
  struct Inbox {  // one stage at one rank
    Time closed_at;
    std::uint64_t arrived = 0, lost = 0;  // packets
    std::uint32_t marks = 0;              // senders whose tail mark is in
    bool started = false, waiting = false;
    Close close = Close::open;
  };
  struct Train {
    Rank from, to;
    std::uint32_t slot, packets, lost;
    std::uint8_t stage;
    bool mark, repair;
  };
  struct Outgoing {
    Rank rank;
    std::uint8_t stage;
  };
  struct Credit {
    Rank rank;
    std::uint64_t bytes;
  };
  enum class Kind : std::uint8_t { enter, early, bound };
  struct Timer {
    Kind kind;
    Rank rank;
    std::uint8_t stage;
  };

  static Duration begin_of(const Episode& episode) {
    return episode.late_start ? episode.end() : Duration{};
  }
  void reset(Time start, const std::vector<Episode>& episodes);
  void run(Time now);
  void on_timer(Time now, const Timer& timer);
  void start_stage(Time now, Rank rank, std::uint8_t stage);
  void check(Time now, Rank rank, std::uint8_t stage);
  void close(Time now, Rank rank, std::uint8_t stage, Close how);
  void close_scatter(Time now, Rank rank);
  void slot_ready(Rank rank, std::uint32_t slot);
  void pump(Time now, Rank rank);
  bool send_repair(Time now, Rank rank);
  bool send_next(Time now, Rank rank);
  void send_slot(Time now, Rank from, const Outgoing& out, bool& more);
  void emit(Time now, const Train& train);
  void give_back(Time now, const Credit& credit);
  void on_outcome(const Fabric::Outcome& outcome);
  void on_lost(Time now, const Train& train, std::uint32_t packets);
  void on_arrived(Time now, const Train& train, std::uint32_t packets);
  std::uint32_t slot_packets(std::uint32_t slot) const;
  std::uint64_t wire_bytes(std::uint32_t slot, std::uint32_t packets) const;
  bool carries_mark(const Train& train);
  bool repairs(std::uint8_t stage) const;
  BoundedOutcome outcome(Time start, const std::vector<Episode>& episodes) const;
  void count_losses(BoundedOutcome& result) const;
  StageOutcome stage_outcome(std::size_t stage) const;

  std::size_t pair(Rank one, Rank other) const { return std::size_t{one} * options_.ranks + other; }
  std::size_t slot_at(Rank rank, std::uint32_t slot) const {
    return std::size_t{rank} * slots_ + slot;
  }

  BoundedOptions options_;
  Fabric& fabric_;
  LossDraw& loss_;
  Senders& senders_;
  std::uint64_t shard_bytes_;
  std::uint32_t shard_packets_, slots_;
  std::uint64_t expected_;  // packets of a stage at a rank
  std::uint64_t packets_sent_ = 0;

  Limits limits_;
  Time clock_{};                  // when half of the ranks have started
  std::uint32_t open_ranks_ = 0;  // not late, stage 1 not closed
  Time finished_{};
  std::vector<std::uint8_t> late_;
  std::array<std::vector<Inbox>, kStages> inbox_;
  std::array<std::vector<std::uint8_t>, kStages> marked_;       // receiver x sender
  std::array<std::vector<std::uint32_t>, kStages> next_;        // sender x receiver: slot, position
  std::vector<std::uint32_t> present_;                          // owner x slot, packets of peers
  std::vector<float> fraction_;                                 // owner x slot, of contributions
  std::vector<double> value_;                                   // by rank: packets x fraction
  std::vector<std::vector<std::uint32_t>> ready_;               // by owner: slots as they leave
  std::array<std::vector<std::deque<Outgoing>>, kStages> out_;  // by sender: may send
  std::vector<std::vector<Rank>> idle_;                         // by owner: wait for ready slots
  std::vector<std::deque<Train>> repairs_;                      // by sender
  std::vector<std::uint64_t> under_way_;                        // by receiver, bytes
  std::vector<std::deque<Outgoing>> waiting_;                   // by receiver: senders
  std::vector<Train> trains_;                                   // by label
  std::vector<std::uint64_t> free_;
  DelayLine<Credit> credits_;
  DelayLine<Train> requests_;
  Timers<Timer> timers_;
};

}  // namespace tarpon::scale
