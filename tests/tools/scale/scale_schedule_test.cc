// Schedules of the scale model: halving-doubling, its own, and the names of all.
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "collectives/allreduce.h"
#include "tools/scale/algorithms.h"

namespace tarpon::scale::scale_schedule_test {
namespace {

/// What every rank has of each chunk after each version, as masks of contributors. Runs whatever is
/// possible until nothing is.
class Replay {
 public:
  explicit Replay(const std::vector<Schedule>& ranks) : ranks_(ranks), has_(ranks.size()) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      has_[rank].assign(ranks[rank].chunks.size(), {1ull << rank});
    }
    while (step()) {
    }
  }

  const std::vector<std::uint64_t>& of(std::size_t rank, std::size_t chunk) const {
    return has_[rank][chunk];
  }
  bool added_twice() const { return added_twice_; }

 private:
  bool step() {
    bool moved = false;
    for (std::size_t to = 0; to < ranks_.size(); ++to) {
      for (std::size_t stage = 0; stage < ranks_[to].stages.size(); ++stage) {
        for (const Schedule::Message& message : ranks_[to].stages[stage].receives) {
          moved |= receive(to, stage, message);
        }
      }
    }
    return moved;
  }

  bool receive(std::size_t to, std::size_t stage, const Schedule::Message& message) {
    const Schedule& sender = ranks_[message.peer];
    for (const Schedule::Message& sent : sender.stages[stage].sends) {
      if (sent.peer != to) continue;
      EXPECT_EQ(sent.piece_count, message.piece_count);
      bool moved = false;
      for (std::uint32_t i = 0; i < message.piece_count; ++i) {
        const Schedule::Piece& from = sender.pieces_of(sent)[i];
        const Schedule::Piece& into = ranks_[to].pieces_of(message)[i];
        EXPECT_EQ(sender.chunks[from.chunk].elements, ranks_[to].chunks[into.chunk].elements);
        const auto& theirs = has_[message.peer][from.chunk];
        auto& ours = has_[to][into.chunk];
        if (theirs.size() <= from.version || ours.size() != into.version) continue;
        const bool adds = into.version <= ranks_[to].chunks[into.chunk].additions;
        added_twice_ |= adds && (ours.back() & theirs[from.version]) != 0;
        ours.push_back(theirs[from.version] | (adds ? ours.back() : 0));
        moved = true;
      }
      return moved;
    }
    ADD_FAILURE() << "rank " << to << " waits for a message that rank " << message.peer
                  << " does not send";
    return false;
  }

  const std::vector<Schedule>& ranks_;
  std::vector<std::vector<std::vector<std::uint64_t>>> has_;  // by rank, chunk and version
  bool added_twice_ = false;
};

TEST(ScaleSchedule, halving_doubling__every_contribution_once_at_every_rank) {
  for (std::uint32_t world = 2; world <= 64; ++world) {
    SCOPED_TRACE(world);
    std::vector<Schedule> ranks;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      ranks.push_back(
          halving_doubling_schedule(world, static_cast<Rank>(rank), 16 * 64, sizeof(float)));
    }
    const Replay replay(ranks);
    EXPECT_FALSE(replay.added_twice());
    for (std::size_t rank = 0; rank < world; ++rank) {
      for (std::size_t chunk = 0; chunk < ranks[rank].chunks.size(); ++chunk) {
        if (ranks[rank].chunks[chunk].elements.count == 0) continue;
        ASSERT_EQ(replay.of(rank, chunk).size(), ranks[rank].chunks[chunk].last_version() + 1);
        ASSERT_EQ(replay.of(rank, chunk).back(), ~0ull >> (64 - world));
      }
    }
  }
}

TEST(ScaleSchedule, halving_doubling__bytes_of_a_rank) {
  for (const std::uint32_t world : {2u, 8u, 64u}) {
    const Schedule schedule = halving_doubling_schedule(world, 1, 16 * 64, sizeof(float));
    std::uint64_t sent = 0;
    std::size_t messages = 0;
    for (const Schedule::Stage& stage : schedule.stages) {
      messages += stage.sends.size();
      for (const Schedule::Message& message : stage.sends) {
        for (const Schedule::Piece& piece : schedule.pieces_of(message)) {
          sent += schedule.chunks[piece.chunk].elements.count;
        }
      }
    }
    EXPECT_EQ(sent, 2 * 16 * 64 / world * (world - 1)) << world;
    EXPECT_EQ(messages, 2u * static_cast<unsigned>(std::countr_zero(world))) << world;
  }
}

TEST(ScaleSchedule, algorithm_named__names_of_all) {
  for (const Algorithm algorithm : kAlgorithms) {
    EXPECT_EQ(algorithm_named(name_of(algorithm)), algorithm);
  }
  EXPECT_EQ(algorithm_named("star"), std::nullopt);
  EXPECT_EQ(name_of(Algorithm::two_level_tar), "2d-tar");
}

/// The schedules that the model makes of the library's.
TEST(ScaleSchedule, for_a_late_rank__every_contribution_once_at_every_rank) {
  for (const Algorithm algorithm :
       {Algorithm::late_rank, Algorithm::tar_shares, Algorithm::stragglar}) {
    for (const std::uint64_t bytes : {std::uint64_t{40}, std::uint64_t{100'000}}) {
      constexpr std::uint32_t kWorld = 8;
      SCOPED_TRACE(std::string(name_of(algorithm)) + ", bytes " + std::to_string(bytes));
      std::vector<Schedule> ranks;
      for (Rank rank = 0; rank < kWorld; ++rank) {
        ranks.push_back(schedule_for(algorithm, kWorld, rank, bytes));
      }
      const Replay replay(ranks);
      EXPECT_FALSE(replay.added_twice());
      for (std::size_t rank = 0; rank < kWorld; ++rank) {
        std::uint64_t elements = 0;
        for (std::size_t chunk = 0; chunk < ranks[rank].chunks.size(); ++chunk) {
          elements += ranks[rank].chunks[chunk].elements.count;
          if (ranks[rank].chunks[chunk].elements.count == 0) continue;
          ASSERT_EQ(replay.of(rank, chunk).back(), 0xffu);
        }
        EXPECT_EQ(elements, bytes / sizeof(float));
      }
    }
  }
}

TEST(ScaleSchedule, can_run__tar_shares_on_64_ranks) {
  EXPECT_TRUE(can_run(Algorithm::tar_shares, 3));
  EXPECT_TRUE(can_run(Algorithm::tar_shares, 64));
  EXPECT_FALSE(can_run(Algorithm::tar_shares, 65));
}

TEST(ScaleSchedule, schedule_for__those_of_all_algorithms_of_the_library) {
  constexpr std::uint32_t kWorld = 8;
  constexpr std::uint64_t kCount = 10'000;
  for (int value = 1; value <= static_cast<int>(kLastAlgorithm); ++value) {
    AllreduceArguments call;
    call.count = kCount;
    call.algorithm = static_cast<tarpon::Algorithm>(value);
    SCOPED_TRACE(name(call.algorithm));
    const auto modelled = algorithm_named(name(call.algorithm));
    ASSERT_TRUE(modelled);
    ASSERT_TRUE(can_run(*modelled, kWorld));
    for (Rank rank = 0; rank < kWorld; ++rank) {
      const Schedule ours = schedule_for(*modelled, kWorld, rank, kCount * sizeof(float));
      const Schedule theirs = schedule_of(call, kWorld, rank, 0);
      ASSERT_EQ(ours.pieces.size(), theirs.pieces.size());
      if (*modelled == Algorithm::late_rank) continue;  // pipelined: in another order
      EXPECT_EQ(ours.pieces, theirs.pieces);
    }
  }
}

TEST(ScaleSchedule, can_run__late_rank_on_powers_of_two) {
  for (const std::uint32_t ranks : {2u, 16u, 64u})
    EXPECT_TRUE(can_run(Algorithm::late_rank, ranks));
  for (const std::uint32_t ranks : {3u, 24u, 128u}) {
    EXPECT_FALSE(can_run(Algorithm::late_rank, ranks));
    EXPECT_TRUE(can_run(Algorithm::ring, ranks));
  }
}

}  // namespace
}  // namespace tarpon::scale::scale_schedule_test
