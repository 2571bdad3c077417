// The executor of a schedule, message by message.
#include "collectives/engine/exact/schedule_executor.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "tests/support/deliver.h"

namespace tarpon::schedule_executor_test {
namespace {

constexpr std::uint32_t kSlotBytes = 64;
constexpr std::size_t kRoom = 1408;

/// Rank 0 of `world` with floats, its operation open at an endpoint.
class Executed {
 public:
  Executed(Algorithm algorithm, std::uint16_t world, std::uint64_t count)
      : input(count, 1.0f),
        output(count),
        endpoint_({.rank = 0, .world_size = world, .job = 7, .detects_silence = false},
                  {.name = "test", .max_payload = kRoom, .receive_bytes = 1 << 20}),
        executor_(schedule_of(asked(algorithm, count), world, 0, 0), shape(world)) {
    spec.slot_bytes = kSlotBytes;
    spec.awaits_confirmations = true;
    spec.stages = executor_.stages();
    handle_ = endpoint_.submit(spec, now_);
  }

  static AllreduceArguments asked(Algorithm algorithm, std::uint64_t count) {
    AllreduceArguments call;
    call.algorithm = algorithm;
    call.count = count;
    return call;
  }

  /// A slot of floats of this value comes from `peer`.
  void deliver(std::size_t stage, Rank peer, std::uint32_t slot, float value) {
    std::array<float, kSlotBytes / sizeof(float)> payload;
    payload.fill(value);
    for (const ReceiveSpec& receive : spec.stages[stage].receives) {
      if (receive.peer != peer) continue;
      testing_support::deliver(*receive.sink, peer, slot, std::as_bytes(std::span(payload)), ~0ull);
    }
    executor_.advance(endpoint_, handle_);
  }

  /// Slots of DATA that may leave now: (stage, peer, slot).
  std::vector<std::array<std::uint32_t, 3>> leaving() {
    std::vector<std::array<std::uint32_t, 3>> result;
    std::array<std::array<std::byte, TARPON_HEADER_BYTES + kRoom>, 16> memory;
    for (;;) {
      std::array<TxPacket, 16> frames;
      for (std::size_t i = 0; i < frames.size(); ++i) {
        frames[i].header = memory[i].data();
        frames[i].room = memory[i].data() + TARPON_HEADER_BYTES;
      }
      const std::size_t used = endpoint_.poll_transmit(now_, frames);
      if (used == 0) return result;
      for (std::size_t i = 0; i < used; ++i) {
        tarpon_header header;
        std::memcpy(&header, frames[i].header, sizeof header);
        if (header.type != TARPON_DATA) continue;
        result.push_back({tarpon_stage(&header), frames[i].peer, header.slot});
      }
    }
  }

  OperationSpec spec;
  std::vector<float> input, output;

 private:
  ScheduleExecutor::Shape shape(std::uint16_t world) {
    ScheduleExecutor::Shape shape;
    shape.chunks.input = reinterpret_cast<const std::byte*>(input.data());
    shape.chunks.sums.output = reinterpret_cast<std::byte*>(output.data());
    shape.chunks.sums.world = world;
    shape.chunks.slot_bytes = kSlotBytes;
    shape.chunks.buffers = &buffers_;
    return shape;
  }

  const Time now_ = Time(1s);
  FloatBufferPool buffers_;
  Endpoint endpoint_;
  ScheduleExecutor executor_;
  OperationHandle handle_;
};

using Slots = std::vector<std::array<std::uint32_t, 3>>;

/// Of 4 ranks rank 0 sends chunks 2 and 3 to rank 2, and chunk 1, when rank 2 has added to it, to
/// rank 1.
TEST(ScheduleExecutorTest, sums__leave_when_they_are_made) {
  Executed job(Algorithm::circulant, 4, 64);  // a slot a chunk
  EXPECT_EQ(job.leaving(), (Slots{{0, 2, 0}, {0, 2, 1}}));
  job.deliver(0, 2, 0, 5);  // chunk 1 goes first: it is sent on
  EXPECT_EQ(job.leaving(), (Slots{{0, 1, 0}}));
  EXPECT_EQ(job.output[16], 6);
  job.deliver(0, 3, 0, 7);  // chunk 0, of the second round: too early
  EXPECT_EQ(job.leaving(), Slots{});
  EXPECT_EQ(job.output[0], 0);
  job.deliver(0, 2, 1, 5);
  EXPECT_EQ(job.output[0], 13);
  EXPECT_EQ(job.leaving(), (Slots{{1, 3, 0}, {1, 2, 0}}));
}

/// Packets that an earlier incarnation of this rank had asked for may bring a result before this
/// one has added anything.
TEST(ScheduleExecutorTest, results__that_come_before_their_sums_let_no_sum_leave) {
  Executed job(Algorithm::circulant, 4, 64);
  job.leaving();
  job.deliver(1, 1, 0, 9);  // chunk 1
  EXPECT_EQ(job.output[16], 9);
  EXPECT_EQ(job.leaving(), Slots{});
  job.deliver(0, 2, 0, 5);
  EXPECT_EQ(job.output[16], 9);
  EXPECT_EQ(job.leaving(), Slots{});
}

}  // namespace
}  // namespace tarpon::schedule_executor_test
