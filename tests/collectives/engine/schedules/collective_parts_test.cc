// Schedules of the collectives beside AllReduce, for 2 to 64 ranks, without a network.
#include "collectives/engine/schedules/collective_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "transport/rank_mask.h"

namespace tarpon::collective_parts_test {
namespace {

constexpr Collective kAll[] = {
    Collective::reduce_scatter, Collective::all_gather, Collective::broadcast, Collective::reduce,
    Collective::gather,         Collective::scatter,    Collective::all_to_all};

/// What a version of a chunk holds: the contributions of ranks to the chunk `chunk` of `origin`.
struct Value {
  std::uint64_t contributors = 0;
  Rank origin = 0;
  std::uint32_t chunk = 0;
};

/// Elements that `from` sends to `to` in an all_to_all with counts. Some parts are empty.
std::uint64_t exchanged(std::uint64_t size, Rank from, Rank to) {
  return size == 0 ? 0 : (from * 7u + to * 3u) % 5 * size;
}

/// The call of one rank: that of all, or, of an all_to_all with counts, one with its own.
CollectiveArguments call_of(const CollectiveArguments& call, std::uint32_t world, Rank rank) {
  CollectiveArguments own = call;
  if (call.collective != Collective::all_to_all || call.counts.empty()) return own;
  own.output_counts.resize(world);
  for (Rank peer = 0; peer < world; ++peer) {
    own.counts[peer] = exchanged(call.counts[0], rank, peer);
    own.output_counts[peer] = exchanged(call.counts[0], peer, rank);
  }
  return own;
}

/// Runs the schedules of all ranks, message by message.
class Job {
 public:
  Job(const CollectiveArguments& call, std::uint32_t world) : world_(world) {
    for (Rank rank = 0; rank < world; ++rank) {
      parts_.push_back(CollectiveParts::of(call_of(call, world, rank), world, rank));
      ranks_.push_back(collective_schedule(parts_[rank], world, rank, sizeof(float)));
      versions_.emplace_back();
      for (std::uint32_t chunk = 0; chunk < ranks_.back().chunks.size(); ++chunk) {
        versions_[rank].push_back({{bit(rank), rank, chunk}});
      }
    }
    for (std::size_t stage = 0; stage < ranks_[0].stages.size(); ++stage) run(stage);
  }

  const Schedule& schedule(Rank rank) const { return ranks_[rank]; }
  const CollectiveParts& parts(Rank rank = 0) const { return parts_[rank]; }

  /// What `rank` has of the elements `range` of the bucket at the end, of `all_to_all` in its
  /// output.
  Value result(Rank rank, Range range) const {
    const Schedule& schedule = ranks_[rank];
    const bool apart = parts().collective == Collective::all_to_all;
    for (std::uint32_t chunk = apart ? world_ : 0; chunk < schedule.chunks.size(); ++chunk) {
      const Schedule::Chunk& one = schedule.chunks[chunk];
      if (one.elements.first > range.first || one.elements.end() < range.end()) continue;
      EXPECT_EQ(versions_[rank][chunk].size(), one.last_version() + 1u);
      return versions_[rank][chunk].back();
    }
    ADD_FAILURE() << "no chunk of rank " << rank << " has these elements";
    return {};
  }

 private:
  void run(std::size_t stage) {
    std::map<std::pair<Rank, Rank>, const Schedule::Message*> sent;
    for (Rank rank = 0; rank < world_; ++rank) {
      ASSERT_EQ(ranks_[rank].stages.size(), ranks_[0].stages.size());
      EXPECT_TRUE(ranks_[rank].stages[stage].confirmed);
      for (const Schedule::Message& message : ranks_[rank].stages[stage].sends) {
        EXPECT_NE(message.peer, rank);
        EXPECT_TRUE(sent.emplace(std::pair(rank, message.peer), &message).second);
      }
    }
    for (Rank rank = 0; rank < world_; ++rank) {
      for (const Schedule::Message& message : ranks_[rank].stages[stage].receives) {
        const auto found = sent.find({message.peer, rank});
        ASSERT_NE(found, sent.end());
        deliver(message.peer, *found->second, rank, message);
        sent.erase(found);
      }
    }
    EXPECT_TRUE(sent.empty()) << "messages that nobody expects";
  }

  void deliver(Rank from, const Schedule::Message& sent, Rank to,
               const Schedule::Message& received) {
    ASSERT_EQ(sent.piece_count, 1u);
    ASSERT_EQ(received.piece_count, 1u);
    const Schedule::Piece source = ranks_[from].pieces_of(sent)[0];
    const Schedule::Piece made = ranks_[to].pieces_of(received)[0];
    const Schedule::Chunk& chunk = ranks_[to].chunks[made.chunk];
    ASSERT_EQ(chunk.elements.count, ranks_[from].chunks[source.chunk].elements.count);
    ASSERT_GT(chunk.elements.count, 0u);
    ASSERT_LT(source.version, versions_[from][source.chunk].size());
    const Value carried = versions_[from][source.chunk][source.version];
    std::vector<Value>& there = versions_[to][made.chunk];
    ASSERT_EQ(made.version, there.size());
    if (chunk.stored) {
      there.push_back(carried);
      return;
    }
    ASSERT_EQ(there.back().contributors & carried.contributors, 0u);
    ASSERT_EQ(chunk.elements, ranks_[from].chunks[source.chunk].elements);
    there.push_back({there.back().contributors | carried.contributors, to, made.chunk});
  }

  const std::uint32_t world_;
  std::vector<CollectiveParts> parts_;  // as each rank has them
  std::vector<Schedule> ranks_;
  std::vector<std::vector<std::vector<Value>>> versions_;  // by rank and chunk
};

/// Part sizes: even, uneven with some that are empty, all of one rank, none.
std::vector<std::vector<std::uint64_t>> sizes(std::uint32_t world) {
  std::vector<std::uint64_t> uneven, one(world, 0);
  for (std::uint32_t rank = 0; rank < world; ++rank) uneven.push_back(rank % 3 * 17);
  one[world / 2] = 1000;
  return {std::vector<std::uint64_t>(world, 33), uneven, one, std::vector<std::uint64_t>(world, 0)};
}

template <typename Body>
void for_all(Body body) {
  for (const Collective collective : kAll) {
    for (std::uint32_t world = 2; world <= 64; ++world) {
      for (const Rank root : {Rank{0}, static_cast<Rank>(world - 1)}) {
        for (const auto& counts : sizes(world)) {
          CollectiveArguments call{.collective = collective, .counts = counts};
          if (has_root(collective)) call.root = root;
          if (collective == Collective::all_to_all && root != 0) {
            call.counts.clear();
            call.count = counts[0];
          }
          if (collective == Collective::broadcast || collective == Collective::reduce) {
            call.counts.clear();
            call.count = counts[world / 2] * 64;
          }
          SCOPED_TRACE(std::string(name(collective)) + ", world " + std::to_string(world) +
                       ", root " + std::to_string(root) + ", " + std::to_string(counts[0]));
          body(Job(call, world), world);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

std::uint64_t everybody(std::uint32_t world) {
  return first_ranks(world);
}

TEST(CollectiveSchedules, result__each_rank_has_what_its_output_needs) {
  for_all([](const Job& job, std::uint32_t world) {
    for (Rank rank = 0; rank < world; ++rank) {
      const CollectiveParts& parts = job.parts(rank);
      const bool at_root = rank == parts.root;
      switch (parts.collective) {
        case Collective::reduce_scatter:
          if (parts.parts[rank].count == 0) break;
          EXPECT_EQ(job.result(rank, parts.parts[rank]).contributors, everybody(world));
          break;
        case Collective::reduce:
          if (!at_root || parts.count == 0) break;
          EXPECT_EQ(job.result(rank, {0, parts.count}).contributors, everybody(world));
          break;
        case Collective::broadcast:
          for (std::uint64_t at = 0; at < parts.count; at += 16) {
            EXPECT_EQ(job.result(rank, {at, 1}).origin, parts.root);
          }
          break;
        case Collective::scatter:
          if (parts.parts[rank].count == 0) break;
          EXPECT_EQ(job.result(rank, parts.parts[rank]).origin, parts.root);
          break;
        case Collective::all_gather:
        case Collective::gather:
        case Collective::all_to_all:
          if (parts.collective == Collective::gather && !at_root) break;
          for (Rank from = 0; from < world; ++from) {
            if (from == rank || parts.parts[from].count == 0) continue;
            const Value value = job.result(rank, parts.parts[from]);
            EXPECT_EQ(value.origin, from);
            if (parts.collective == Collective::all_to_all) {
              EXPECT_EQ(value.chunk, rank);
            }
          }
          break;
        case Collective::allreduce:
        case Collective::send:
        case Collective::receive:
          FAIL();
      }
    }
  });
}

TEST(CollectiveSchedules, bytes__nothing_is_sent_twice_to_a_rank) {
  for_all([](const Job& job, std::uint32_t world) {
    for (Rank rank = 0; rank < world; ++rank) {
      const CollectiveParts& parts = job.parts(rank);
      std::uint64_t received = 0;
      const Schedule& schedule = job.schedule(rank);
      for (const Schedule::Stage& stage : schedule.stages) {
        for (const Schedule::Message& message : stage.receives) {
          received += schedule.chunks[schedule.pieces_of(message)[0].chunk].elements.count;
        }
      }
      const bool sums = reduces(parts.collective);
      const std::uint64_t needed = parts.output(rank).count * (sums ? world - 1 : 1) -
                                   (sums ? 0 : parts.own_copy(rank).count);
      EXPECT_EQ(received, needed);
    }
  });
}

TEST(CollectiveSchedules, broadcast__of_a_large_buffer_leaves_the_root_once) {
  for (std::uint32_t world = 3; world <= 64; ++world) {
    const Job job({.collective = Collective::broadcast, .count = 1 << 20, .root = 1}, world);
    std::uint64_t sent = 0;
    const Schedule& schedule = job.schedule(1);
    for (const Schedule::Stage& stage : schedule.stages) {
      for (const Schedule::Message& message : stage.sends) {
        sent += schedule.chunks[schedule.pieces_of(message)[0].chunk].elements.count;
      }
    }
    EXPECT_EQ(sent, std::uint64_t{1} << 20);
  }
}

TEST(CollectiveSchedules, message__goes_from_the_sender_to_the_receiver_alone) {
  constexpr std::uint32_t kWorld = 5;
  const auto of = [](Collective direction, Rank rank, Rank peer) {
    return CollectiveParts::of({.collective = direction, .count = 7, .peer = peer}, kWorld, rank);
  };
  const CollectiveParts sent = of(Collective::send, 3, 1), taken = of(Collective::receive, 1, 3);
  const Schedule sender = collective_schedule(sent, kWorld, 3, 1);
  const Schedule receiver = collective_schedule(taken, kWorld, 1, 1);
  ASSERT_EQ(sender.stages.size(), 1u);
  ASSERT_EQ(sender.stages[0].sends.size(), 1u);
  EXPECT_TRUE(sender.stages[0].receives.empty());
  EXPECT_EQ(sender.stages[0].sends[0].peer, 1);
  ASSERT_EQ(receiver.stages[0].receives.size(), 1u);
  EXPECT_TRUE(receiver.stages[0].sends.empty());
  EXPECT_EQ(receiver.stages[0].receives[0].peer, 3);
  EXPECT_EQ(sent.input(3).count, 7u);
  EXPECT_EQ(sent.output(3).count, 0u);
  EXPECT_EQ(taken.input(1).count, 0u);
  EXPECT_EQ(taken.output(1).count, 7u);
}

TEST(CollectiveParts, hash__of_equal_parts_is_zero_and_of_others_differs) {
  const auto hash = [](std::vector<std::uint64_t> counts) {
    return CollectiveParts::of({.collective = Collective::all_gather, .counts = counts},
                               static_cast<std::uint32_t>(counts.size()), 0)
        .hash();
  };
  EXPECT_EQ(hash({5, 5, 5}), 0);
  EXPECT_NE(hash({5, 5, 6}), 0);
  EXPECT_NE(hash({5, 5, 6}), hash({5, 6, 5}));
}

}  // namespace
}  // namespace tarpon::collective_parts_test
