// Rings, frame ownership and descriptors without a kernel.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "xdp/frame_pool.h"
#include "xdp/ring.h"
#include "xdp/socket.h"

namespace tarpon::xdp {
namespace {

/// A ring in plain memory, whose other side the test plays.
struct PlainRing {
  explicit PlainRing(std::uint32_t start = 0) : producer(start), consumer(start) {}

  RingLayout layout() {
    return {.producer = &producer,
            .consumer = &consumer,
            .flags = &flags,
            .entries = entries.data(),
            .size = 8};
  }

  std::uint32_t producer;
  std::uint32_t consumer;
  std::uint32_t flags = 0;
  std::array<std::uint64_t, 8> entries{};
};

TEST(RingTest, producer__fills_up_wraps_and_shows_only_what_is_submitted) {
  PlainRing memory(0xfffffffcu);  // the indices wrap within the test
  ProducerRing<std::uint64_t> ring(memory.layout());
  EXPECT_EQ(ring.room(100), 8u);
  for (std::uint32_t i = 0; i < 8; ++i) ring.at(i) = 100 + i;
  EXPECT_EQ(memory.producer, 0xfffffffcu);
  ring.submit(8);
  EXPECT_EQ(memory.producer, 4u);
  EXPECT_EQ(ring.room(1), 0u);
  EXPECT_EQ(ring.pending(), 8u);
  memory.consumer += 3;
  EXPECT_EQ(ring.room(100), 3u);
  EXPECT_EQ(ring.pending(), 5u);
  ring.at(2) = 7;
  EXPECT_EQ(memory.entries[(4 + 2) % 8], 7u);
}

TEST(RingTest, producer__wakes_the_kernel_only_when_it_asks) {
  PlainRing memory;
  const ProducerRing<std::uint64_t> ring(memory.layout());
  EXPECT_FALSE(ring.needs_wakeup());
  memory.flags = XDP_RING_NEED_WAKEUP;
  EXPECT_TRUE(ring.needs_wakeup());
}

TEST(RingTest, consumer__sees_what_the_kernel_submits_in_order) {
  PlainRing memory(0xfffffffeu);
  ConsumerRing<std::uint64_t> ring(memory.layout());
  EXPECT_EQ(ring.available(8), 0u);
  for (std::uint32_t i = 0; i < 5; ++i) memory.entries[(memory.producer + i) % 8] = i;
  memory.producer += 5;
  EXPECT_EQ(ring.available(3), 3u);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(ring.at(i), i);
  ring.release(3);
  EXPECT_EQ(memory.consumer, 1u);
  EXPECT_EQ(ring.available(8), 2u);
  EXPECT_EQ(ring.at(1), 4u);
}

TEST(FramePoolTest, every_frame_has_one_owner) {
  FramePool pool(10, 14);
  std::vector<std::uint32_t> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(pool.take(FrameState::filling));
  EXPECT_EQ(pool.take(FrameState::filling), FramePool::kNone);
  EXPECT_EQ(taken, (std::vector<std::uint32_t>{10, 11, 12, 13}));
  EXPECT_TRUE(pool.move(11, FrameState::filling, FrameState::sending));
  EXPECT_FALSE(pool.move(11, FrameState::filling, FrameState::free)) << "the kernel has it";
  EXPECT_TRUE(pool.move(11, FrameState::sending, FrameState::free));
  EXPECT_FALSE(pool.move(11, FrameState::sending, FrameState::free)) << "completed twice";
  EXPECT_FALSE(pool.move(9, FrameState::sending, FrameState::free)) << "never ours";
  EXPECT_FALSE(pool.move(14, FrameState::sending, FrameState::free)) << "never ours";
  EXPECT_EQ(pool.violations(), 4u);
  EXPECT_EQ(pool.available(), 1u);
  EXPECT_EQ(pool.take(FrameState::fill), 11u);
}

TEST(FramePoolTest, frames_of_several_chunks_are_named_by_the_first) {
  FramePool pool(4, 14, 3);  // 4, 7, 10; the rest is too short for one
  EXPECT_EQ(pool.size(), 3u);
  EXPECT_EQ(pool.take(FrameState::filling), 4u);
  EXPECT_TRUE(pool.owns(7));
  EXPECT_FALSE(pool.owns(8));
  EXPECT_FALSE(pool.owns(13));
}

/// The cases of the kernel's own test (tools/testing/selftests/bpf/xskxceiver.c,
/// testapp_invalid_desc), for chunks of 4096 bytes.
TEST(DescriptorTest, nothing_that_the_kernel_refuses_passes) {
  constexpr std::uint64_t kUmem = 64 * kFrameBytes;
  struct Case {
    const char* what;
    xdp_desc descriptor;
    bool valid;
  };
  const Case cases[] = {
      {"address 0", {0, 64, 0}, true},
      {"an ordinary one", {2 * kFrameBytes, 64, 0}, true},
      {"length 0", {0, 0, 0}, false},
      {"straddles the start", {~0ull - 1, 64, 0}, false},
      {"longer than a chunk", {kFrameBytes, kFrameBytes + 1, 0}, false},
      {"up to the end", {kUmem - 64, 64, 0}, true},
      {"behind the end", {kUmem, 64, 0}, false},
      {"straddles the end", {kUmem - 32, 64, 0}, false},
      {"straddles a chunk", {kFrameBytes - 32, 64, 0}, false},
      {"straddles 2 KiB, inside a chunk", {kFrameBytes / 2 - 32, 64, 0}, true},
      {"unknown options", {0, 64, 8}, false},
      {"several buffers, not agreed on", {0, 64, kPacketContinues}, false},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(valid_descriptor(one.descriptor, kUmem, false), one.valid) << one.what;
  }
  EXPECT_TRUE(valid_descriptor({0, 64, kPacketContinues}, kUmem, true));
}

}  // namespace
}  // namespace tarpon::xdp
