// Schedules of the scale model: what one rank sends, another waits for, and it adds up.
#include <gtest/gtest.h>

#include <bit>

#include "tools/scale/step_schedule.h"

namespace tarpon::scale {
namespace {

constexpr Algorithm kStepped[] = {Algorithm::ring, Algorithm::halving_doubling, Algorithm::tar};

TEST(ScaleSchedule, step_of__sends_and_receives_meet) {
  constexpr std::uint64_t kBytes = 1'000'003;
  for (const Algorithm algorithm : kStepped) {
    for (const std::uint32_t ranks : {2u, 3u, 4u, 5u, 7u, 8u, 12u, 16u, 31u, 64u}) {
      SCOPED_TRACE(std::string(name_of(algorithm)) + " " + std::to_string(ranks));
      for (std::uint32_t step = 0; step < step_count(algorithm, ranks); ++step) {
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          const Step mine = step_of(algorithm, ranks, kBytes, static_cast<Rank>(rank), step);
          if (mine.send_bytes > 0) {
            const Step its = step_of(algorithm, ranks, kBytes, mine.to, step);
            ASSERT_EQ(its.from, rank);
            ASSERT_EQ(its.receive_bytes, mine.send_bytes);
          }
          if (mine.receive_bytes > 0) {
            const Step its = step_of(algorithm, ranks, kBytes, mine.from, step);
            ASSERT_EQ(its.to, rank);
            ASSERT_EQ(its.send_bytes, mine.receive_bytes);
          }
        }
      }
    }
  }
}

TEST(ScaleSchedule, step_of__bytes_of_a_rank) {
  constexpr std::uint64_t kBytes = 1 << 20;
  for (const Algorithm algorithm : kStepped) {
    for (const std::uint32_t ranks : {2u, 8u, 64u}) {
      std::uint64_t sent = 0;
      for (std::uint32_t step = 0; step < step_count(algorithm, ranks); ++step) {
        sent += step_of(algorithm, ranks, kBytes, 1, step).send_bytes;
      }
      EXPECT_EQ(sent, 2 * kBytes / ranks * (ranks - 1)) << name_of(algorithm) << " " << ranks;
    }
  }
}

TEST(ScaleSchedule, tar__every_peer_once_a_stage) {
  constexpr std::uint32_t kRanks = 9;
  std::uint32_t peers = 0;
  for (std::uint32_t step = 0; step < kRanks - 1; ++step) {
    peers |= 1u << step_of(Algorithm::tar, kRanks, 1000, 4, step).to;
  }
  EXPECT_EQ(std::popcount(peers), 8);
  EXPECT_EQ(peers & 1u << 4, 0u);
}

TEST(ScaleSchedule, shard_bytes__add_up) {
  for (const std::uint64_t bytes : {10ull, 1000ull, 1001ull, 1007ull}) {
    std::uint64_t total = 0;
    for (std::uint32_t shard = 0; shard < 8; ++shard) total += shard_bytes(bytes, 8, shard);
    EXPECT_EQ(total, bytes);
  }
}

TEST(ScaleSchedule, algorithm_named__names_of_all) {
  for (const Algorithm algorithm : kAlgorithms) {
    EXPECT_EQ(algorithm_named(name_of(algorithm)), algorithm);
  }
  EXPECT_EQ(algorithm_named("star"), std::nullopt);
}

}  // namespace
}  // namespace tarpon::scale
