// Buffers of coded buckets, made and touched before a call needs them.
#include "collectives/engine/call/float_buffer_pool.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/large_memory.h"

namespace tarpon::testing_support::float_buffer_pool_test {
namespace {

constexpr std::uint64_t kCount = 1'000'000;
constexpr std::uint64_t kPiece = 64 << 10;

TEST(FloatBufferPool, reuses_buffers_that_fit_and_frees_idle_ones) {
  constexpr std::uint64_t kLarge = 100 * kCount;
  LargeMemory memory;
  FloatBufferPool pool(&memory);
  FloatBufferPool::Buffer buffer = pool.allocate(kLarge);
  const float* const large = buffer.get();
  pool.release(std::move(buffer));
  buffer = pool.allocate(kCount);
  EXPECT_NE(buffer.get(), large);
  const float* const small = buffer.get();
  pool.release(std::move(buffer));
  buffer = pool.allocate(kLarge);
  EXPECT_EQ(buffer.get(), large);
  pool.release(std::move(buffer));
  EXPECT_EQ(memory.held, 2);
  for (int call = 0; call < 100; ++call) {
    buffer = pool.allocate(kCount);
    EXPECT_EQ(buffer.get(), small);
    pool.release(std::move(buffer));
  }
  EXPECT_EQ(memory.large, 2);
  EXPECT_EQ(memory.held, 1);
}

TEST(FloatBufferPool, prepare_makes_what_is_not_idle_up_to_a_limit) {
  LargeMemory memory;
  FloatBufferPool pool(&memory);
  const std::vector<std::uint64_t> wanted(20, kCount);
  pool.prepare(wanted);
  EXPECT_EQ(memory.large, 8);
  pool.prepare(wanted);
  EXPECT_EQ(memory.large, 8);
  std::uint64_t touched = 0;
  while (pool.has_piece()) {
    const Piece piece = pool.take_piece(kPiece);
    EXPECT_LE(piece.bytes, kPiece);
    piece.run();
    pool.piece_ended();
    touched += piece.bytes;
  }
  EXPECT_EQ(touched, 8 * 4u << 20);
  std::vector<FloatBufferPool::Buffer> buffers;
  for (int i = 0; i < 8; ++i) buffers.push_back(pool.allocate(kCount));
  EXPECT_EQ(memory.large, 8);
  for (auto& buffer : buffers) pool.release(std::move(buffer));
}

TEST(FloatBufferPool, a_call_may_take_a_buffer_that_is_not_touched_yet) {
  LargeMemory memory;
  FloatBufferPool pool(&memory);
  pool.prepare(std::vector<std::uint64_t>(2, kCount));
  const Piece piece = pool.take_piece(kPiece);
  FloatBufferPool::Buffer other = pool.allocate(kCount);
  EXPECT_EQ(memory.large, 2);
  piece.run();
  pool.piece_ended();
  EXPECT_TRUE(pool.has_piece());
  pool.release(std::move(other));
}

}  // namespace
}  // namespace tarpon::testing_support::float_buffer_pool_test
