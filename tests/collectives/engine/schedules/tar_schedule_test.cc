// Properties of the schedules for many rank counts, without a network.
#include "collectives/engine/schedules/tar_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace tarpon::tar_schedule_test {
namespace {

constexpr std::uint32_t kLargestWorld = 64;

std::vector<std::uint64_t> counts(std::uint32_t world) {
  return {0, 1, world - 1, world, world + 1, 15, 16, 17, 16 * world, 16 * world + 1, 1000, 65'537};
}

/// Calls `body(world, count, element_bytes)` over the whole range of the tests.
template <typename Body>
void for_all(Body body) {
  for (std::uint32_t world = 1; world <= kLargestWorld; ++world) {
    for (const std::uint64_t count : counts(world)) {
      for (const std::size_t element_bytes : {std::size_t{4}, std::size_t{8}}) {
        SCOPED_TRACE("world " + std::to_string(world) + " count " + std::to_string(count) +
                     " element bytes " + std::to_string(element_bytes));
        body(world, count, element_bytes);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

std::vector<TarSchedule> all_ranks(std::uint32_t world, std::uint32_t operation,
                                   std::uint64_t count, std::size_t element_bytes) {
  std::vector<TarSchedule> schedules;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    schedules.push_back(
        tar_schedule(world, static_cast<Rank>(rank), operation, count, element_bytes));
  }
  return schedules;
}

const TarSchedule::Transfer& with(const std::vector<TarSchedule::Transfer>& transfers,
                                  std::uint32_t peer) {
  static constexpr TarSchedule::Transfer kNone{kUnknownRank, 1, 1};
  for (const TarSchedule::Transfer& transfer : transfers) {
    if (transfer.peer == peer) return transfer;
  }
  return kNone;
}

TEST(ShardLayoutTest, elements__cover_every_element_exactly_once) {
  for_all([](std::uint32_t world, std::uint64_t count, std::size_t element_bytes) {
    const ShardLayout layout{count, element_bytes, world};
    std::uint64_t next = 0;
    for (std::uint32_t shard = 0; shard < world; ++shard) {
      const Range range = layout.elements(shard);
      ASSERT_EQ(range.first, next);
      next = range.end();
    }
    ASSERT_EQ(next, count);
  });
}

TEST(ShardLayoutTest, bytes__start_aligned_and_never_exceed_a_full_shard) {
  for_all([](std::uint32_t world, std::uint64_t count, std::size_t element_bytes) {
    const ShardLayout layout{count, element_bytes, world};
    for (std::uint32_t shard = 0; shard < world; ++shard) {
      const Range range = layout.bytes(shard);
      ASSERT_TRUE(range.count == 0 || range.first % kShardAlignment == 0);
      ASSERT_LE(range.count, layout.shard_elements() * element_bytes);
    }
  });
}

TEST(ShardLayoutTest, shard_elements__any_element_size_fills_whole_alignment_units) {
  for (const std::size_t element_bytes : {1u, 2u, 3u, 12u, 64u, 100u}) {
    const ShardLayout layout{1'000'003, element_bytes, 7};
    EXPECT_EQ(layout.shard_elements() * element_bytes % kShardAlignment, 0u) << element_bytes;
    EXPECT_GE(layout.shard_elements() * 7, layout.count) << element_bytes;
    EXPECT_LT(layout.shard_elements(), layout.count / 7 + 1 + kShardAlignment) << element_bytes;
  }
}

TEST(ShardLayoutTest, bytes__large_buckets_do_not_overflow) {
  const ShardLayout layout{std::uint64_t{1} << 58, 8, 65'535};
  EXPECT_EQ(layout.bytes(65'534).end(), std::uint64_t{1} << 61);
}

TEST(OwnershipTest, shard_of__is_the_inverse_of_owner_of) {
  for (std::uint32_t world = 1; world <= kLargestWorld; ++world) {
    for (const std::uint32_t operation : {0u, 1u, world - 1, world, 1'000'003u, 0xffff'ffffu}) {
      for (std::uint32_t shard = 0; shard < world; ++shard) {
        const Rank owner = owner_of(shard, operation, world);
        ASSERT_EQ(owner, (std::uint64_t{shard} + operation) % world);
        ASSERT_EQ(shard_of(owner, operation, world), shard);
      }
    }
  }
}

TEST(OwnershipTest, owner_of__every_rank_owns_every_shard_once_in_world_operations) {
  for (std::uint32_t world = 1; world <= kLargestWorld; ++world) {
    for (std::uint32_t shard = 0; shard < world; ++shard) {
      std::set<Rank> owners;
      for (std::uint32_t k = 0; k < world; ++k) owners.insert(owner_of(shard, 77 + k, world));
      ASSERT_EQ(owners.size(), world);
    }
  }
}

TEST(TarScheduleTest, sends__match_the_receives_of_the_peer_byte_for_byte) {
  for_all([](std::uint32_t world, std::uint64_t count, std::size_t element_bytes) {
    const std::vector<TarSchedule> ranks = all_ranks(world, 5, count, element_bytes);
    for (std::uint32_t sender = 0; sender < world; ++sender) {
      ASSERT_EQ(ranks[sender].stages.size(), 2u);
      for (std::size_t stage = 0; stage < 2; ++stage) {
        ASSERT_EQ(ranks[sender].stages[stage].sends.size(), world - 1);
        ASSERT_EQ(ranks[sender].stages[stage].receives.size(), world - 1);
        for (const TarSchedule::Transfer& send : ranks[sender].stages[stage].sends) {
          const auto& received = with(ranks[send.peer].stages[stage].receives, sender);
          ASSERT_EQ(received.first_byte, send.first_byte);
          ASSERT_EQ(received.bytes, send.bytes);
        }
      }
    }
  });
}

TEST(TarScheduleTest, scatter__every_contribution_to_every_byte_arrives_exactly_once) {
  for_all([](std::uint32_t world, std::uint64_t count, std::size_t element_bytes) {
    std::uint64_t owned = 0;
    for (const TarSchedule& schedule : all_ranks(world, 3, count, element_bytes)) {
      owned += schedule.own.count;
      std::set<Rank> contributors;
      for (const TarSchedule::Transfer& receive : schedule.stages[kScatter].receives) {
        ASSERT_EQ(receive.first_byte, schedule.own.first);
        ASSERT_EQ(receive.bytes, schedule.own.count);
        contributors.insert(receive.peer);
      }
      ASSERT_EQ(contributors.size(), world - 1);
    }
    ASSERT_EQ(owned, count * element_bytes);
  });
}

TEST(TarScheduleTest, gather__fills_everything_but_the_own_shard_exactly_once) {
  for_all([](std::uint32_t world, std::uint64_t count, std::size_t element_bytes) {
    for (const TarSchedule& schedule : all_ranks(world, 9, count, element_bytes)) {
      std::vector<Range> filled{schedule.own};
      for (const TarSchedule::Transfer& receive : schedule.stages[kGather].receives) {
        filled.push_back({receive.first_byte, receive.bytes});
      }
      std::sort(filled.begin(), filled.end(), [](const Range& a, const Range& b) {
        return std::pair(a.first, a.count) < std::pair(b.first, b.count);
      });
      std::uint64_t next = 0;
      for (const Range& range : filled) {
        ASSERT_EQ(range.first, next);
        next = range.end();
      }
      ASSERT_EQ(next, count * element_bytes);
    }
  });
}

TEST(TarScheduleTest, order__sends_go_to_the_predecessor_first_and_turns_start_at_the_successor) {
  const TarSchedule schedule = tar_schedule(4, 1, 6, 1000, 4);
  for (const TarSchedule::Stage& stage : schedule.stages) {
    ASSERT_EQ(stage.sends.size(), 3u);
    EXPECT_EQ(stage.sends[0].peer, 0);
    EXPECT_EQ(stage.sends[1].peer, 3);
    EXPECT_EQ(stage.sends[2].peer, 2);
    EXPECT_EQ(stage.receives[0].peer, 2);
    EXPECT_EQ(stage.receives[1].peer, 3);
    EXPECT_EQ(stage.receives[2].peer, 0);
  }
}

TEST(TarScheduleTest, order__the_kth_send_of_every_rank_is_the_kth_turn_of_its_receiver) {
  for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
    const std::vector<TarSchedule> ranks = all_ranks(world, 2, 1000, 4);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      for (std::size_t turn = 0; turn + 1 < world; ++turn) {
        const Rank receiver = ranks[rank].stages[kScatter].sends[turn].peer;
        ASSERT_EQ(ranks[receiver].stages[kScatter].receives[turn].peer, rank);
      }
    }
  }
}

TEST(TarScheduleTest, one_rank__owns_everything_and_talks_to_nobody) {
  const TarSchedule schedule = tar_schedule(1, 0, 12, 1000, 8);
  EXPECT_EQ(schedule.own, (Range{0, 8000}));
  ASSERT_EQ(schedule.stages.size(), 2u);
  EXPECT_TRUE(schedule.stages[kScatter].sends.empty());
  EXPECT_TRUE(schedule.stages[kGather].receives.empty());
}

TEST(SlotsTest, slots__add_up_to_the_message) {
  for (const std::uint64_t bytes : {0u, 1u, 63u, 64u, 1407u, 1408u, 1409u, 100'000u}) {
    for (const std::uint32_t slot_bytes : {64u, 1408u, 8896u}) {
      std::uint64_t total = 0;
      for (std::uint32_t slot = 0; slot < slots(bytes, slot_bytes); ++slot) {
        ASSERT_EQ(total, std::uint64_t{slot} * slot_bytes);
        total += slot_length(bytes, slot_bytes, slot);
      }
      ASSERT_EQ(total, bytes);
    }
  }
}

TEST(SlotsTest, slot_length__only_the_last_is_short) {
  EXPECT_EQ(slots(3000, 1408), 3u);
  EXPECT_EQ(slot_length(3000, 1408, 0), 1408u);
  EXPECT_EQ(slot_length(3000, 1408, 1), 1408u);
  EXPECT_EQ(slot_length(3000, 1408, 2), 184u);
}

}  // namespace
}  // namespace tarpon::tar_schedule_test
