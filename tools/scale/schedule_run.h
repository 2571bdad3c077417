// One reliable AllReduce after another: a schedule over ReliableFlows, piece by piece.
//
// A rank sends a piece as soon as its chunk has the piece's version. With halving-doubling it sends
// a message once all its pieces are there, and uses none before all have come, as Gloo does. Stages
// with rounds go round by round, as published: a rank sends one piece after the other, each when
// its receiver has the pieces of all earlier rounds and has said so (ReliableFlows::signal).
// Otherwise a rank that is ahead sends to ranks that still receive earlier rounds. It slows them,
// and they lag more in each round. Memory: some 24 bytes for each piece of each rank, 1.5 GB for
// TAR on 4096 ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "tools/scale/algorithms.h"
#include "tools/scale/reliable_flow.h"

namespace tarpon::scale {

/// Single-threaded.
class ScheduleRun {
 public:
  /// `flows` and `senders` are lent; this takes over the callbacks of `flows`. REQUIRES: can_run().
  ScheduleRun(Algorithm algorithm, std::uint32_t ranks, std::uint64_t bytes, ReliableFlows& flows,
              Senders& senders);

  struct Outcome {
    Duration completion{};  // until the last rank has its result
    Time idle;              // nothing of it is under way any more
  };
  /// REQUIRES: `start` is not before the last one's `idle`.
  Outcome operate(Time start, const std::vector<Episode>& episodes);

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Sent {
    std::uint32_t chunk = 0, version = 0;
    Rank to = 0;
    std::uint32_t step = 0;  // its stage, and its place in the message
    std::uint32_t round = kNone;
    std::uint32_t message = 0;  // in `unsent`
    std::uint64_t bytes = 0;
  };
  /// Of a message that is sent whole.
  struct Whole {
    std::uint32_t pieces = 0;
    std::uint32_t ready = 0;
    std::uint64_t bytes = 0;
  };
  struct Received {
    std::uint32_t chunk = 0, version = 0;
    Rank from = 0;
    std::uint32_t round = kNone;
  };
  struct Message {
    std::uint8_t stage = 0;
    Rank from = 0;
    std::uint32_t first = 0;  // in `received`
    std::uint32_t count = 0;
    auto key() const { return std::pair(stage, from); }
  };
  struct Chunk {
    std::uint32_t last_version = 0;
    std::uint32_t first_sent = 0;  // in `sums`
    std::uint32_t first_made = 0;  // in `made_by`
  };
  using ByRound = std::priority_queue<std::pair<std::uint32_t, std::uint32_t>,
                                      std::vector<std::pair<std::uint32_t, std::uint32_t>>,
                                      std::greater<>>;  // round, place in `sends`
  struct State {
    // Of the schedule.
    std::vector<Sent> sends;          // in its order
    std::vector<std::uint32_t> sums;  // those that wait for a version, by chunk and version
    std::vector<Received> received;
    std::vector<Message> messages;       // by key
    std::vector<Chunk> chunks;           // and one more
    std::vector<std::uint32_t> made_by;  // of each version from 1 on of each chunk: in `received`
    std::uint32_t round_stages = 0;      // bit s: stage s has rounds
    std::vector<std::uint32_t> rounds;   // received pieces of these stages, by round
    // Of the operation.
    std::vector<Whole> unsent;
    std::vector<std::uint32_t> versions;  // of each chunk
    std::vector<std::uint32_t> next_sum;  // of each chunk: in `sums`
    std::vector<bool> came;               // of each received piece
    std::uint32_t unfinished = 0;         // chunks
    ByRound to_send;
    bool sends_by_round = false;         // a piece of a stage with rounds is being sent
    Time begun;                          // when the rank begins the operation
    std::uint32_t next_round = 0;        // the first in `rounds` that has not come
    std::vector<std::uint32_t> cleared;  // by rank: it can receive rounds below this one
  };

  static State state_of(const Schedule& schedule);
  void on_delivered(Time now, Rank from, Rank to, std::uint32_t step);
  void begin(Time now, State& state, Rank rank);
  void send(Time now, State& state, Rank rank, std::uint32_t place);
  void send_next_round(Time now, State& state, Rank rank);
  void ask_for_next_round(Time now, State& state, Rank rank);
  void raise(Time now, State& state, std::uint32_t index);

  const bool whole_messages_;
  ReliableFlows& flows_;
  Senders& senders_;
  std::vector<State> states_;       // by rank
  std::vector<std::uint32_t> due_;  // in `sends` of a rank: may go out now
  Time finished_{};
};

}  // namespace tarpon::scale
