// Shards, their owners, their turns and their slots, for many rank counts.
#include "collectives/engine/schedules/tar_shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tarpon::tar_shards_test {
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

std::vector<TarShards> all_ranks(std::uint32_t world, std::uint32_t operation, std::uint64_t count,
                                 std::size_t element_bytes) {
  std::vector<TarShards> ranks;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    ranks.push_back(tar_shards(world, static_cast<Rank>(rank), operation, count, element_bytes));
  }
  return ranks;
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

TEST(ShardLayoutTest, elements__start_aligned_and_never_exceed_a_full_shard) {
  for_all([](std::uint32_t world, std::uint64_t count, std::size_t element_bytes) {
    const ShardLayout layout{count, element_bytes, world};
    for (std::uint32_t shard = 0; shard < world; ++shard) {
      const Range range = layout.elements(shard).times(element_bytes);
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

TEST(ShardLayoutTest, elements__large_buckets_do_not_overflow) {
  const ShardLayout layout{std::uint64_t{1} << 58, 8, 65'535};
  EXPECT_EQ(layout.elements(65'534).times(8).end(), std::uint64_t{1} << 61);
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

TEST(TarShardsTest, shards__are_alike_at_all_ranks) {
  for_all([](std::uint32_t world, std::uint64_t count, std::size_t element_bytes) {
    const std::vector<TarShards> ranks = all_ranks(world, 5, count, element_bytes);
    for (const TarShards& shards : ranks) {
      ASSERT_EQ(shards.others.size(), world - 1);
      for (const TarShards::Shard& shard : shards.others) {
        ASSERT_EQ(shard.range, ranks[shard.owner].own);
      }
    }
  });
}

TEST(TarShardsTest, shards__cover_every_element_exactly_once) {
  for_all([](std::uint32_t world, std::uint64_t count, std::size_t element_bytes) {
    for (const TarShards& shards : all_ranks(world, 9, count, element_bytes)) {
      std::vector<Range> ranges{shards.own};
      std::set<Rank> owners;
      for (const TarShards::Shard& shard : shards.others) {
        ranges.push_back(shard.range);
        owners.insert(shard.owner);
      }
      ASSERT_EQ(owners.size(), world - 1);
      std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
        return std::pair(a.first, a.count) < std::pair(b.first, b.count);
      });
      std::uint64_t next = 0;
      for (const Range& range : ranges) {
        ASSERT_EQ(range.first, next);
        next = range.end();
      }
      ASSERT_EQ(next, count);
    }
  });
}

TEST(TarShardsTest, others__are_in_the_order_of_turns_from_the_successor_on) {
  const TarShards shards = tar_shards(4, 1, 6, 1000, 4);
  ASSERT_EQ(shards.others.size(), 3u);
  EXPECT_EQ(shards.others[0].owner, 2);
  EXPECT_EQ(shards.others[1].owner, 3);
  EXPECT_EQ(shards.others[2].owner, 0);
}

TEST(TarShardsTest, others__the_kth_send_of_every_rank_is_the_kth_turn_of_its_receiver) {
  for (std::uint32_t world = 2; world <= kLargestWorld; ++world) {
    const std::vector<TarShards> ranks = all_ranks(world, 2, 1000, 4);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      for (std::size_t turn = 0; turn + 1 < world; ++turn) {
        const Rank receiver = ranks[rank].others[world - 2 - turn].owner;
        ASSERT_EQ(ranks[receiver].others[turn].owner, rank);
      }
    }
  }
}

TEST(TarShardsTest, one_rank__owns_everything) {
  const TarShards shards = tar_shards(1, 0, 12, 1000, 8);
  EXPECT_EQ(shards.own, (Range{0, 1000}));
  EXPECT_TRUE(shards.others.empty());
}

TEST(TarShardsTest, shares__cut_the_bucket_by_owner_in_whole_units) {
  const Shares shares(std::array<double, 3>{1, 0, 3});
  for (std::uint32_t operation = 0; operation < 3; ++operation) {
    const TarShards shards = tar_shards(3, 0, operation, 16 * 8 - 1, 4, shares);
    EXPECT_EQ(shards.own.count, shards.own.end() == 127 ? 31u : 32u) << operation;
    EXPECT_EQ(shards.others[0].range.count, 0u);
    EXPECT_EQ(shards.own.count + shards.others[1].range.count, 127u);
  }
}

TEST(TarShardsTest, striped_shards__deal_out_every_row_exactly_once) {
  constexpr std::uint32_t kBytes = 100, kPitch = 128;
  for (std::uint32_t world = 1; world <= kLargestWorld; ++world) {
    for (const std::uint64_t rows : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{world} - 1,
                                     std::uint64_t{world}, std::uint64_t{3} * world + 1}) {
      const TarShards shards = striped_shards(world, 0, 7, rows, kBytes, kPitch);
      std::set<std::uint64_t> found;
      const auto add = [&](const Range& range) {
        for (std::uint64_t row = 0; row < range.count / kBytes; ++row) {
          ASSERT_TRUE(found.insert(range.first / kPitch + row * world).second);
        }
      };
      add(shards.own);
      for (const TarShards::Shard& shard : shards.others) add(shard.range);
      ASSERT_EQ(found.size(), rows);
      ASSERT_TRUE(rows == 0 || *found.rbegin() == rows - 1);
    }
  }
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
}  // namespace tarpon::tar_shards_test
