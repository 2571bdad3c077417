// Promises of every schedule that ScheduledCall runs, for 2 to 64 ranks, without a network.
#include "collectives/engine/schedules/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <vector>

#include "tests/support/schedules.h"
#include "transport/random.h"
#include "transport/rank_mask.h"

namespace tarpon::schedule_test {
namespace {

using testing_support::ExactKind;
using testing_support::job_of;
using testing_support::JobSchedules;
using testing_support::kExactKinds;

constexpr std::uint32_t kLargestWorld = 64;

constexpr std::uint32_t kManyRanks = 20;

/// Calls `body(job)` over algorithms, ranks, operations and counts; of many ranks one count.
template <typename Body>
void for_all(Body body) {
  for (const ExactKind& kind : kExactKinds) {
    for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
      for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{17},
                                        std::uint64_t{16} * world + 1, std::uint64_t{65'537}}) {
        if (world > kManyRanks && world < kLargestWorld && count != 16 * world + 1) continue;
        if (!kind.runs_on(world)) continue;
        // Numbers wrap: 17 comes with the last one.
        const std::uint32_t operation =
            count == 17 ? UINT32_MAX : world + static_cast<std::uint32_t>(count % 5);
        SCOPED_TRACE(kind.text() + ", world " + std::to_string(world) + ", count " +
                     std::to_string(count));
        body(job_of(kind, world, operation, count));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

const Schedule::Message* message_with(const std::vector<Schedule::Message>& messages, Rank peer) {
  const auto found = std::find_if(messages.begin(), messages.end(),
                                  [peer](const auto& one) { return one.peer == peer; });
  return found == messages.end() ? nullptr : &*found;
}

TEST(ScheduleTest, chunks__cover_every_element_exactly_once_at_every_rank) {
  for_all([](const JobSchedules& job) {
    for (const Schedule& schedule : job.ranks) {
      std::vector<Range> ranges;
      for (const Schedule::Chunk& chunk : schedule.chunks) {
        if (chunk.elements.count > 0) ranges.push_back(chunk.elements);
      }
      std::sort(ranges.begin(), ranges.end(),
                [](const Range& a, const Range& b) { return a.first < b.first; });
      std::uint64_t next = 0;
      for (const Range& range : ranges) {
        ASSERT_EQ(range.first, next);
        next = range.end();
      }
      ASSERT_EQ(next, job.count);
    }
  });
}

TEST(ScheduleTest, messages__one_a_pair_of_ranks_and_stage_alike_at_both_ends) {
  for_all([](const JobSchedules& job) {
    for (std::uint32_t rank = 0; rank < job.world(); ++rank) {
      const Schedule& schedule = job.ranks[rank];
      ASSERT_GE(schedule.stages.size(), 1u);
      ASSERT_LE(schedule.stages.size(), 4u);
      for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
        std::set<Rank> peers;
        for (const Schedule::Message& send : schedule.stages[stage].sends) {
          ASSERT_TRUE(peers.insert(send.peer).second);
          ASSERT_NE(send.peer, rank);
          ASSERT_LT(send.peer, job.world());
          ASSERT_GT(send.piece_count, 0u);
          const auto sent = schedule.pieces_of(send);
          const Schedule& there = job.ranks[send.peer];
          ASSERT_EQ(there.stages[stage].confirmed, schedule.stages[stage].confirmed);
          const Schedule::Message* const received =
              message_with(there.stages[stage].receives, static_cast<Rank>(rank));
          ASSERT_NE(received, nullptr);
          const auto made = there.pieces_of(*received);
          ASSERT_EQ(made.size(), sent.size());
          for (std::size_t i = 0; i < sent.size(); ++i) {
            ASSERT_EQ(made[i].partial, sent[i].partial);
            const Range elements = schedule.chunks[sent[i].chunk].elements;
            ASSERT_EQ(there.chunks[made[i].chunk].elements, elements);
            ASSERT_GT(elements.count, 0u);
          }
        }
        for (const Schedule::Message& receive : schedule.stages[stage].receives) {
          ASSERT_NE(
              message_with(job.ranks[receive.peer].stages[stage].sends, static_cast<Rank>(rank)),
              nullptr);
        }
      }
    }
  });
}

/// A piece that its receiver has made one of its versions of, or may.
struct Sent {
  Rank from = 0, to = 0;
  Schedule::Piece source, made;
  bool confirms = false;  // its stage is confirmed
  bool offered = false;   // may arrive, or has
  bool arrived = false;
};

/// One chunk at one rank on its way.
struct Progress {
  std::vector<std::uint64_t> contributors;  // of each version so far
  bool own_added = false;
};

/// Runs a job: pieces arrive in any order that the versions allow.
class Arrivals {
 public:
  explicit Arrivals(const JobSchedules& job) : job_(job), progress_(job.world()) {
    for (const Schedule& schedule : job.ranks) {
      from_.emplace_back(schedule.chunks.size());
      into_.emplace_back(schedule.chunks.size());
    }
    for (Rank rank = 0; rank < job.world(); ++rank) {
      const Schedule& schedule = job.ranks[rank];
      for (std::size_t chunk = 0; chunk < schedule.chunks.size(); ++chunk) {
        progress_[rank].push_back({{bit(rank)}, schedule.chunks[chunk].own_turn == 0});
      }
      for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
        for (const Schedule::Message& send : schedule.stages[stage].sends) add(rank, stage, send);
      }
    }
  }

  /// Whether all pieces could arrive, the order drawn from `seed`.
  bool finish(std::uint64_t seed) {
    Random random(seed);
    for (std::size_t i = 0; i < sent_.size(); ++i) offer(i);
    for (std::size_t left = sent_.size(); left > 0; --left) {
      if (possible_.empty()) return false;
      std::swap(possible_[random.below(possible_.size())], possible_.back());
      Sent& one = sent_[possible_.back()];
      possible_.pop_back();
      arrive(one);
      if (testing::Test::HasFatalFailure()) return false;
      // What may arrive stays possible. The new version adds some.
      for (const std::size_t i : from_[one.to][one.made.chunk]) offer(i);
      for (const std::size_t i : into_[one.to][one.made.chunk]) offer(i);
    }
    return true;
  }

  const Progress& at(Rank rank, std::size_t chunk) const { return progress_[rank][chunk]; }

 private:
  void add(Rank rank, std::size_t stage, const Schedule::Message& send) {
    const Schedule::Stage& there = job_.ranks[send.peer].stages[stage];
    const Schedule::Message* const received = message_with(there.receives, rank);
    const auto sources = job_.ranks[rank].pieces_of(send);
    const auto made = job_.ranks[send.peer].pieces_of(*received);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      from_[rank][sources[i].chunk].push_back(sent_.size());
      into_[send.peer][made[i].chunk].push_back(sent_.size());
      sent_.push_back({rank, send.peer, sources[i], made[i], there.confirmed});
    }
  }

  void offer(std::size_t number) {
    Sent& one = sent_[number];
    if (one.offered || !may_arrive(one)) return;
    one.offered = true;
    possible_.push_back(number);
  }

  std::uint32_t version(Rank rank, std::uint32_t chunk) const {
    return static_cast<std::uint32_t>(progress_[rank][chunk].contributors.size()) - 1;
  }

  bool may_arrive(const Sent& one) const {
    return version(one.from, one.source.chunk) >= one.source.version &&
           version(one.to, one.made.chunk) + 1 == one.made.version;
  }

  void arrive(Sent& one) {
    const Schedule::Chunk& chunk = job_.ranks[one.to].chunks[one.made.chunk];
    Progress& there = progress_[one.to][one.made.chunk];
    const std::uint64_t carried =
        progress_[one.from][one.source.chunk].contributors[one.source.version];
    const bool all = carried == all_ranks();
    ASSERT_EQ(one.source.partial, std::popcount(carried) > 1 && !all);
    if (chunk.stored && one.made.version == chunk.last_version()) {
      ASSERT_TRUE(all);
      // A stored result takes the place of sums that this rank has sent.
      for (const std::size_t i : from_[one.to][one.made.chunk]) {
        const Sent& other = sent_[i];
        ASSERT_TRUE(other.arrived || other.source.version == chunk.last_version());
      }
      there.contributors.push_back(carried);
    } else {
      const std::uint64_t before =
          chunk.own_turn > 0 && one.made.version == 1 ? 0 : there.contributors.back();
      ASSERT_EQ(before & carried, 0u);
      there.contributors.push_back(before | carried);
      if (chunk.own_turn == one.made.version) {
        ASSERT_EQ(there.contributors.back() & bit(one.to), 0u);
        there.contributors.back() |= bit(one.to);
        there.own_added = true;
      }
    }
    one.arrived = true;
  }

  std::uint64_t all_ranks() const { return ~0ull >> (64 - job_.world()); }

  const JobSchedules& job_;
  std::vector<std::vector<Progress>> progress_;
  std::vector<Sent> sent_;
  // Pieces, as numbers in sent_, by rank and chunk: from_ has those that this rank sends of this
  // chunk, into_ has those that it receives.
  std::vector<std::vector<std::vector<std::size_t>>> from_, into_;
  std::vector<std::size_t> possible_;  // numbers in sent_: offered, and not arrived
};

TEST(ScheduleTest, result__every_contribution_once_at_every_rank_in_any_order_of_arrival) {
  for (const ExactKind& kind : kExactKinds) {
    for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
      const std::uint64_t seeds = world <= 9 ? 20 : world <= 20 ? 2 : 1;
      if (!kind.runs_on(world)) continue;
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        SCOPED_TRACE(kind.text() + ", world " + std::to_string(world) + ", seed " +
                     std::to_string(seed));
        const JobSchedules job = job_of(kind, world, static_cast<std::uint32_t>(seed), 16 * world);
        Arrivals run(job);
        ASSERT_TRUE(run.finish(seed));
        for (Rank rank = 0; rank < world; ++rank) {
          for (std::size_t i = 0; i < job.ranks[rank].chunks.size(); ++i) {
            const Schedule::Chunk& chunk = job.ranks[rank].chunks[i];
            if (chunk.elements.count == 0) continue;  // its owner has no share
            ASSERT_EQ(run.at(rank, i).contributors.size(), chunk.last_version() + 1u);
            ASSERT_EQ(run.at(rank, i).contributors.back(), ~0ull >> (64 - world));
            ASSERT_TRUE(run.at(rank, i).own_added);
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, late_rank__in_several_chunks_a_rank_every_contribution_once) {
  for (std::uint32_t world = 2; world <= 16; world *= 2) {
    for (const Rank late : {Rank{0}, static_cast<Rank>(world - 1)}) {
      for (const std::uint32_t segments : {2u, 4u, 5u}) {
        SCOPED_TRACE("world " + std::to_string(world) + ", " + std::to_string(segments));
        const std::uint32_t chunks = segments * (world - 1);
        JobSchedules job{16 * chunks, {}};
        for (Rank rank = 0; rank < world; ++rank) {
          job.ranks.push_back(late_rank_schedule(world, rank, UINT32_MAX - segments, job.count,
                                                 sizeof(float), late, segments));
        }
        Arrivals run(job);
        ASSERT_TRUE(run.finish(segments));
        for (Rank rank = 0; rank < world; ++rank) {
          for (std::uint32_t i = 0; i < chunks; ++i) {
            ASSERT_EQ(run.at(rank, i).contributors.back(), ~0ull >> (64 - world));
            ASSERT_TRUE(run.at(rank, i).own_added);
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, late_rank__pieces_go_out_by_round) {
  for (const std::uint32_t world : {2u, 8u, 32u}) {
    for (Rank rank = 0; rank < world; ++rank) {
      const Schedule schedule = late_rank_schedule(world, rank, 0, 64 * world, sizeof(float), 1, 4);
      for (std::size_t i = 1; i < schedule.stages.size(); ++i) {
        EXPECT_TRUE(schedule.stages[i].in_rounds);
        for (const Schedule::Message& message : schedule.stages[i].sends) {
          const auto pieces = schedule.pieces_of(message);
          const auto later = [](const Schedule::Piece& a, const Schedule::Piece& b) {
            return a.round >= b.round;
          };
          EXPECT_EQ(std::adjacent_find(pieces.begin(), pieces.end(), later), pieces.end());
        }
      }
    }
  }
}

}  // namespace
}  // namespace tarpon::schedule_test
