// Agreements of a job, with streams and datagrams between them, in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "collectives/membership/agreement.h"
#include "transport/random.h"

namespace tarpon::testing_support {

/// Machines joined by queues that keep the order of each pair, as connections do. A dead rank's
/// messages still arrive, before the news of its death. Datagrams do what the test says.
class AgreementJob {
 public:
  static constexpr Time kStart{1s};

  explicit AgreementJob(Rank ranks, const std::vector<LossBudget>& budgets = {{0, 0.1, 0.5}})
      : queues_(ranks, std::vector<std::deque<AgreementMessage>>(ranks)), dead_(ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) facts_.emplace_back(ranks);
    for (Rank rank = 0; rank < ranks; ++rank) machines_.emplace_back(rank, facts_[rank], budgets);
  }

  Agreement& operator[](Rank rank) { return machines_[rank]; }

  void report(Rank rank, std::uint64_t step, double lost, std::uint64_t digest = 0) {
    machines_[rank].report(step, {.lost_fraction = lost, .digest = digest}, 1s, now);
    collect(rank);
  }

  /// Of what `rank` has said last, `cut` messages never leave it.
  void kill(Rank rank, std::size_t cut = 0) {
    dead_[rank] = true;
    for (Rank peer = 0; peer < size() && cut > 0; ++peer) {
      std::deque<AgreementMessage>& queue = queues_[rank][peer];
      for (; cut > 0 && !queue.empty(); --cut) queue.pop_back();
    }
  }

  /// Delivers one message from `from` to `to`, or the news of a death. False: nothing to deliver.
  bool deliver(Rank from, Rank to) {
    if (dead_[to]) return false;
    std::deque<AgreementMessage>& queue = queues_[from][to];
    if (!queue.empty()) {
      const auto message = decode_agreement(encode(queue.front()), size());
      queue.pop_front();
      machines_[to].receive(from, *message, Agreement::Carrier::stream, now);
    } else if (dead_[from] && !knows_[{from, to}]) {
      knows_[{from, to}] = true;
      facts_[to].learn(
          {.rank = from, .standing = Standing::dead, .evidence = {}, .next_numbers = {}});
      machines_[to].facts_changed(now);
    } else {
      return false;
    }
    collect(to);
    return true;
  }

  /// Datagrams under way: some are delivered, in any order, some stay, some come again.
  void stir_datagrams(Random& random) {
    for (int turn = 0; turn < 4 && !air_.empty(); ++turn) {
      const std::size_t at = random.below(air_.size());
      const Datagram one = air_[at];
      const std::uint64_t fate = random.below(4);
      if (fate != 0) air_.erase(air_.begin() + static_cast<std::ptrdiff_t>(at));
      if (fate != 1) receive(one);
    }
  }

  /// Delivers all datagrams that are under way, then their answers, until none is left.
  void deliver_datagrams() {
    while (!air_.empty()) {
      const Datagram one = air_.front();
      air_.erase(air_.begin());
      receive(one);
    }
  }

  void lose_datagrams() { air_.clear(); }

  void deliver_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank from = 0; from < size(); ++from) {
        for (Rank to = 0; to < size(); ++to) moved |= from != to && deliver(from, to);
      }
    }
  }

  void pass(Duration time) {
    now += time;
    for (Rank rank = 0; rank < size(); ++rank) {
      if (dead_[rank]) continue;
      machines_[rank].tick(now);
      collect(rank);
    }
  }

  Rank size() const { return static_cast<Rank>(machines_.size()); }
  bool dead(Rank rank) const { return dead_[rank]; }
  Time now = kStart;

 private:
  struct Datagram {
    Rank from = 0, to = 0;
    AgreementPayload payload;
  };

  void collect(Rank rank) {
    using Carrier = Agreement::Carrier;
    for (auto& [to, carrier, message] : machines_[rank].take_outbox()) {
      if (carrier != Carrier::datagram) queues_[rank][to].push_back(message);
      if (carrier != Carrier::stream) air_.push_back({rank, to, pack(message)});
    }
  }

  void receive(const Datagram& one) {
    if (dead_[one.to]) return;
    EXPECT_TRUE(one.payload.is_of_datagram());
    machines_[one.to].receive(one.from, *unpack(one.payload, size()), Agreement::Carrier::datagram,
                              now);
    collect(one.to);
  }

  std::deque<Facts> facts_;
  std::deque<Agreement> machines_;
  std::vector<std::vector<std::deque<AgreementMessage>>> queues_;  // [from][to]
  std::vector<Datagram> air_;
  std::vector<bool> dead_;
  std::map<std::pair<Rank, Rank>, bool> knows_;  // [dead, by whom]
};

}  // namespace tarpon::testing_support
