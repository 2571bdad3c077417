// What the schedules cost: messages and elements, and who makes what.
#include "collectives/engine/schedules/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "tests/support/schedules.h"

namespace tarpon::schedule_cost_test {
namespace {

using testing_support::ExactKind;
using testing_support::job_of;
using testing_support::JobSchedules;

constexpr std::uint32_t kLargestWorld = 64;

/// Elements that a rank sends, and messages.
struct Cost {
  std::uint64_t elements = 0;
  std::size_t messages = 0;
};

Cost cost_of(const Schedule& schedule) {
  Cost cost;
  for (const Schedule::Stage& stage : schedule.stages) {
    cost.messages += stage.sends.size();
    for (const Schedule::Message& send : stage.sends) {
      for (const Schedule::Piece& piece : schedule.pieces_of(send)) {
        cost.elements += schedule.chunks[piece.chunk].elements.count;
      }
    }
  }
  return cost;
}

TEST(ScheduleTest, circulant__logarithmic_messages_and_two_buckets_at_most) {
  for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
    const JobSchedules job = job_of(Algorithm::circulant, world, 3, 16 * world);
    const auto rounds = static_cast<std::size_t>(std::bit_width(world - 1));
    for (const Schedule& schedule : job.ranks) {
      const Cost cost = cost_of(schedule);
      EXPECT_EQ(cost.messages, 2 * rounds) << world;
      EXPECT_EQ(cost.elements, 2 * 16 * (world - 1)) << world;
    }
  }
}

TEST(ScheduleTest, one_shot__one_message_to_each_rank_of_the_whole_bucket) {
  for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
    const JobSchedules job = job_of(Algorithm::one_shot, world, 3, 100);
    for (const Schedule& schedule : job.ranks) {
      EXPECT_EQ(schedule.stages.size(), 1u);
      EXPECT_EQ(cost_of(schedule).messages, world - 1);
      EXPECT_EQ(cost_of(schedule).elements, 100 * (world - 1));
    }
  }
}

TEST(ScheduleTest, tar__a_message_to_each_rank_a_stage_and_two_buckets_at_most) {
  for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
    for (const Schedule& schedule : job_of(Algorithm::tar, world, 3, 16 * world).ranks) {
      EXPECT_EQ(cost_of(schedule).messages, 2 * (world - 1));
      EXPECT_EQ(cost_of(schedule).elements, 2 * 16 * (world - 1));
    }
  }
}

/// A rank that owns the part w of the bucket sends and receives 1 + (world - 2) w of it.
TEST(ScheduleTest, shares__what_a_rank_sends_and_receives_follows_from_its_own) {
  for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
    constexpr std::uint64_t kCount = 1 << 20;
    AllreduceArguments call;
    call.count = kCount;
    ExactKind{Algorithm::tar, true}.ask(call, world);
    for (Rank rank = 0; rank < world; ++rank) {
      const Schedule schedule = schedule_of(call, world, rank, 5);
      const double part = static_cast<double>(call.shares.part(rank)) / Shares::kWhole;
      std::uint64_t received = 0;
      for (const Schedule::Stage& stage : schedule.stages) {
        for (const Schedule::Message& message : stage.receives) {
          received += schedule.chunks[schedule.pieces_of(message)[0].chunk].elements.count;
        }
      }
      EXPECT_EQ(received, cost_of(schedule).elements);
      EXPECT_NEAR(static_cast<double>(received) / kCount, 1 + (world - 2) * part, 2e-3) << world;
    }
  }
}

/// So that no owner hears all ranks at once.
TEST(ScheduleTest, tar__the_kth_send_of_a_rank_is_the_kth_addition_of_its_receiver) {
  for (const std::uint32_t world : {2u, 3u, 8u, 64u}) {
    const JobSchedules job = job_of(Algorithm::tar, world, 2, 16 * world);
    for (Rank rank = 0; rank < world; ++rank) {
      for (const Schedule::Stage& stage : job.ranks[rank].stages) {
        for (std::uint32_t k = 0; k < world - 1; ++k) {
          EXPECT_EQ(stage.sends[k].peer, (rank + world - 1 - k) % world);
        }
      }
      const Schedule::Stage& scatter = job.ranks[rank].stages[0];
      for (std::uint32_t k = 0; k < world - 1; ++k) {
        EXPECT_EQ(scatter.receives[k].peer, (rank + 1 + k) % world);
        EXPECT_EQ(job.ranks[rank].pieces_of(scatter.receives[k])[0].version, k + 1);
      }
    }
  }
}

TEST(ScheduleTest, ring__two_messages_and_two_buckets_at_most) {
  for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
    for (const Schedule& schedule : job_of(Algorithm::ring, world, 3, 16 * world).ranks) {
      EXPECT_EQ(cost_of(schedule).messages, 2u);
      EXPECT_EQ(cost_of(schedule).elements, 2 * 16 * (world - 1));
    }
  }
}

TEST(ScheduleTest, recursive_doubling__a_bucket_a_round_and_two_more_beyond_powers_of_two) {
  for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
    const std::uint32_t rounds = static_cast<std::uint32_t>(std::bit_width(world)) - 1;
    const std::uint32_t folded = world - (1u << rounds);
    const JobSchedules job = job_of(Algorithm::recursive_doubling, world, 3, 100);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const bool in_pair = rank < 2 * folded;
      const std::size_t messages = !in_pair ? rounds : rank % 2 == 0 ? rounds + 1 : 1;
      EXPECT_EQ(cost_of(job.ranks[rank]).messages, messages) << world << " " << rank;
      EXPECT_EQ(cost_of(job.ranks[rank]).elements, 100 * messages);
    }
  }
}

TEST(ScheduleTest, two_level_tar__few_messages_and_two_buckets_at_most) {
  for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
    for (std::uint32_t size = 1; size <= world; ++size) {
      if (world % size != 0) continue;
      for (Rank rank = 0; rank < world; ++rank) {
        const Schedule schedule =
            two_level_tar_schedule(world, rank, 3, 16 * world, sizeof(float), size);
        EXPECT_EQ(cost_of(schedule).messages, 2 * (size - 1) + 2 * (world / size - 1));
        EXPECT_EQ(cost_of(schedule).elements, 2 * 16 * (world - 1));
        for (const Schedule::Stage& stage : schedule.stages) {
          EXPECT_LT(stage.receives.size(), std::max(size, world / size));
        }
      }
    }
  }
}

/// 64 ranks in 16 groups. In OptiReduce each group sends its whole sum to each other one: 21 steps.
/// Here groups scatter and gather their sums, which takes an eighth of the bytes between them.
TEST(ScheduleTest, two_level_tar__64_ranks_take_36_steps_in_place_of_126) {
  EXPECT_EQ(cost_of(two_level_tar_schedule(64, 9, 0, 16 * 64, sizeof(float), 4)).messages, 36u);
  EXPECT_EQ(cost_of(transpose_schedule(64, 9, 0, 16 * 64, sizeof(float))).messages, 126u);
}

/// The published count: after the arrival of the late rank each rank sends and receives the bucket
/// once, and at most (M + k - 1) / M of it, for M chunks and 2^k ranks.
TEST(ScheduleTest, late_rank__a_bucket_and_a_little_more_after_the_arrival) {
  for (std::uint32_t world = 2; world <= kLargestWorld; world *= 2) {
    const auto levels = static_cast<std::uint32_t>(std::bit_width(world)) - 1;
    for (const std::uint32_t segments : {1u, 2u, 4u}) {
      const std::uint32_t chunks = segments * (world - 1);
      for (Rank rank = 0; rank < world; ++rank) {
        const Schedule schedule =
            late_rank_schedule(world, rank, 3, 16 * chunks, sizeof(float), 1, segments);
        Schedule after = schedule;
        after.stages.erase(after.stages.begin());
        const std::uint64_t sent = cost_of(after).elements / 16;
        std::uint64_t received = 0;
        for (const Schedule::Stage& stage : after.stages) {
          for (const Schedule::Message& message : stage.receives) received += message.piece_count;
        }
        EXPECT_LE(sent, chunks + levels - 1) << world << " " << segments << " " << rank;
        EXPECT_EQ(received, chunks) << world << " " << segments << " " << rank;
        if (rank != 1) continue;
        EXPECT_GE(sent, chunks);
        EXPECT_TRUE(schedule.stages[0].sends.empty());
      }
    }
  }
}

TEST(ScheduleTest, default_group_size__is_the_largest_divisor_up_to_the_root) {
  const std::map<std::uint32_t, std::uint32_t> sizes{{1, 1}, {2, 1},  {4, 2},  {6, 2},
                                                     {7, 1}, {12, 3}, {16, 4}, {64, 8}};
  for (const auto& [world, size] : sizes) EXPECT_EQ(default_group_size(world), size) << world;
}

TEST(ScheduleTest, circulant__who_makes_a_chunk_rotates) {
  const auto made_by_rank_0 = [](std::uint32_t operation) {
    const Schedule schedule = circulant_schedule(5, 0, operation, 80, sizeof(float));
    return schedule.chunks[0].elements.first;
  };
  std::set<std::uint64_t> firsts;
  for (std::uint32_t operation = 0; operation < 5; ++operation) {
    firsts.insert(made_by_rank_0(operation));
  }
  EXPECT_EQ(firsts.size(), 5u);
}

}  // namespace
}  // namespace tarpon::schedule_cost_test
