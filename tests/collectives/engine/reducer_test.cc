// Reducer: contributions from first to last, averages, what is scaled when some are missing.
#include "collectives/engine/bounded/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/support/deliver.h"
#include "tools/reference/half_types.h"
#include "transport/rank_mask.h"

namespace tarpon::reducer_test {
namespace {

constexpr std::uint32_t kSlotBytes = 64;
constexpr std::size_t kElements = 36;  // 144 bytes: two full slots and a short one
constexpr std::uint32_t kWorld = 4;
constexpr Rank kSelf = 1;

/// A reducer of floats whose ranks contribute value(rank, i).
struct Rig {
  explicit Rig(ReduceOp function, bool in_place = false, std::uint32_t world = kWorld)
      : own(kElements), result(kElements, -1.0f) {
    for (std::size_t i = 0; i < kElements; ++i) own[i] = value(kSelf, i);
    if (in_place) result = own;
    Reducer::Shape shape;
    shape.own = {reinterpret_cast<const std::byte*>(in_place ? result.data() : own.data()),
                 kSlotBytes};
    shape.accumulator = {reinterpret_cast<std::byte*>(result.data()), kSlotBytes};
    shape.bytes = kElements * 4;
    shape.slot_bytes = kSlotBytes;
    shape.function = function;
    shape.rank = kSelf;
    shape.world = world;
    reducer = std::make_unique<Reducer>(shape);
  }

  static float value(Rank rank, std::size_t i) {
    return static_cast<float>(10 * rank + 3) + static_cast<float>(i) / 8;
  }

  static std::size_t first(std::uint32_t slot) { return slot * std::size_t{kSlotBytes} / 4; }
  static std::size_t end(std::uint32_t slot) { return std::min(first(slot + 1), kElements); }

  void deliver(Rank from, std::uint32_t slot) {
    std::vector<float> payload;
    for (std::size_t i = first(slot); i < end(slot); ++i) payload.push_back(value(from, i));
    testing_support::deliver(*reducer, from, slot, std::as_bytes(std::span(payload)));
  }

  std::vector<float> own, result;
  std::unique_ptr<Reducer> reducer;
};

constexpr std::uint64_t kAll = 0xf;

TEST(ReducerTest, deliver__first_and_last_contribution_in_and_out_of_place) {
  for (const bool in_place : {false, true}) {
    for (const ReduceOp function :
         {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::prod}) {
      Rig rig(function, in_place);
      for (std::uint32_t slot = 0; slot < 3; ++slot) {
        for (const Rank from : {Rank{2}, Rank{3}, Rank{0}}) rig.deliver(from, slot);
        EXPECT_EQ(rig.reducer->ready(), slot + 1);
      }
      for (std::size_t i = 0; i < kElements; ++i) {
        float expected = Rig::value(1, i);
        for (const Rank from : {Rank{2}, Rank{3}, Rank{0}}) {
          const float next = Rig::value(from, i);
          expected = function == ReduceOp::min    ? std::min(expected, next)
                     : function == ReduceOp::max  ? std::max(expected, next)
                     : function == ReduceOp::prod ? expected * next
                                                  : expected + next;
        }
        if (function == ReduceOp::avg) expected /= kWorld;
        EXPECT_EQ(rig.result[i], expected) << name(function) << " element " << i;
        if (!in_place) {
          EXPECT_EQ(rig.own[i], Rig::value(kSelf, i)) << "the input is unchanged";
        }
      }
    }
  }
}

TEST(ReducerTest, ready__stops_at_the_first_slot_that_lacks_one) {
  Rig rig(ReduceOp::sum);
  for (const Rank from : {Rank{0}, Rank{2}, Rank{3}}) rig.deliver(from, 1);
  for (const Rank from : {Rank{0}, Rank{2}, Rank{3}}) rig.deliver(from, 2);
  rig.deliver(0, 0);
  rig.deliver(2, 0);
  EXPECT_EQ(rig.reducer->ready(), 0u);
  EXPECT_EQ(rig.reducer->contributors(), (ContributorMasks{0x7, kAll, kAll}));
  rig.deliver(3, 0);
  EXPECT_EQ(rig.reducer->ready(), 3u);
}

TEST(ReducerTest, settle__scales_by_the_contributions_that_are_there) {
  for (const bool in_place : {false, true}) {
    for (const ReduceOp function : {ReduceOp::sum, ReduceOp::avg}) {
      Rig rig(function, in_place);
      for (const Rank from : {Rank{0}, Rank{2}, Rank{3}}) rig.deliver(from, 0);  // all
      rig.deliver(2, 1);                                                         // 2 of 4
      rig.reducer->settle(rig.reducer->slots() - rig.reducer->ready());          // slot 2: 1 of 4
      EXPECT_EQ(rig.reducer->ready(), 3u);
      EXPECT_EQ(rig.reducer->contributors(), (ContributorMasks{kAll, 0x6, 0x2}));
      const bool sum = function == ReduceOp::sum;
      for (std::size_t i = 0; i < kElements; ++i) {
        const float one = Rig::value(1, i);
        const float two = one + Rig::value(2, i);
        const float all = two + Rig::value(3, i) + Rig::value(0, i);
        const float expected = i < Rig::end(0)   ? (sum ? all : all / 4)
                               : i < Rig::end(1) ? (sum ? two * 2 : two / 2)
                                                 : (sum ? one * 4 : one);
        EXPECT_FLOAT_EQ(rig.result[i], expected) << name(function) << " element " << i;
      }
    }
  }
}

TEST(ReducerTest, settle__a_second_time_only_if_nothing_was_missing) {
  Rig rig(ReduceOp::avg);
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    for (const Rank from : {Rank{0}, Rank{2}, Rank{3}}) rig.deliver(from, slot);
  }
  const std::vector<float> before = rig.result;
  rig.reducer->settle(rig.reducer->slots() - rig.reducer->ready());
  EXPECT_EQ(rig.result, before);
}

/// A reducer of float16 whose rank 0 contributes 1024 and the others 0.5: each of them would vanish
/// if it were added to a rounded sum.
struct HalfRig {
  static constexpr std::size_t kSlotElements = kSlotBytes / 2;

  HalfRig(ReduceOp function, bool in_place, std::uint32_t ranks, Rescale rescale = Rescale::count)
      : own(2 * kSlotElements, value(kSelf)), result(own.size(), Float16(-1)) {
    if (in_place) result = own;
    Reducer::Shape shape;
    shape.own = {reinterpret_cast<const std::byte*>(in_place ? result.data() : own.data()),
                 kSlotBytes};
    shape.accumulator = {reinterpret_cast<std::byte*>(result.data()), kSlotBytes};
    shape.bytes = own.size() * 2;
    shape.slot_bytes = kSlotBytes;
    shape.type = DataType::float16;
    shape.function = function;
    shape.rank = kSelf;
    shape.world = ranks;
    shape.rescale = rescale;
    if (Reducer::uses_partials(shape.type, function, ranks)) {
      partials.resize(own.size());
      shape.partials = partials.data();
    }
    reducer = std::make_unique<Reducer>(shape);
  }

  static Float16 value(Rank rank) { return Float16(rank == 0 ? 1024 : 0.5); }

  void deliver(Rank from, std::uint32_t slot) {
    const std::vector<Float16> payload(kSlotElements, value(from));
    testing_support::deliver(*reducer, from, slot, std::as_bytes(std::span(payload)));
  }

  /// Of all elements of the slot, which are equal.
  float result_of(std::uint32_t slot) const {
    const auto first = result.begin() + static_cast<std::ptrdiff_t>(slot * kSlotElements);
    EXPECT_TRUE(std::all_of(first, first + kSlotElements,
                            [&](Float16 one) { return one.bits() == first->bits(); }));
    return *first;
  }

  std::vector<Float16> own, result;
  std::vector<float> partials;
  std::unique_ptr<Reducer> reducer;
};

TEST(ReducerTest, half__sums_are_rounded_when_the_last_contribution_is_in) {
  for (const bool in_place : {false, true}) {
    HalfRig sum(ReduceOp::sum, in_place, 4), average(ReduceOp::avg, in_place, 4);
    for (HalfRig* rig : {&sum, &average}) {
      const std::vector<Float16> before = rig->result;
      rig->deliver(2, 0);
      rig->deliver(0, 0);
      EXPECT_EQ(std::memcmp(rig->result.data(), before.data(), before.size() * 2), 0)
          << "the sum is not here yet";
      rig->deliver(3, 0);
      EXPECT_EQ(rig->reducer->ready(), 1u);
    }
    EXPECT_EQ(sum.result_of(0), 1026) << "1025.5, to even";
    EXPECT_EQ(average.result_of(0), 256.5f) << "1025.5 / 4 = 256.375, to even";
  }
}

TEST(ReducerTest, half__slots_that_lack_contributions_are_scaled_from_partial_results) {
  for (const bool in_place : {false, true}) {
    HalfRig rig(ReduceOp::sum, in_place, 4);
    rig.deliver(0, 0);
    rig.deliver(2, 0);
    rig.reducer->settle(2);
    EXPECT_EQ(rig.result_of(0), 1367) << "1025 * 4 / 3, rounded";
    EXPECT_EQ(rig.result_of(1), 2) << "0.5 * 4, of the owner alone";
    HalfRig plain(ReduceOp::sum, in_place, 4, Rescale::none);
    plain.deliver(0, 0);
    plain.reducer->lost(2, 0);
    plain.reducer->lost(3, 0);
    EXPECT_EQ(plain.reducer->ready(), 1u);
    EXPECT_EQ(plain.result_of(0), 1024) << "1024.5, to even";
    plain.reducer->settle(1);
    EXPECT_EQ(plain.result_of(1), 0.5f);
  }
}

/// Elements that differ, a last slot that is short, and as many contributions as `arrivals` says.
void expect_rounded_once(std::uint32_t ranks, std::uint32_t arrivals, bool in_place) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, " << arrivals << " arrivals, " << in_place);
  constexpr std::size_t kCount = 2 * HalfRig::kSlotElements + 5;
  const auto value = [](Rank rank, std::size_t i) {
    return Float16(static_cast<float>((i * 37 + rank * 101) % 199) / 7 - 10);
  };
  std::vector<Float16> own, result(kCount, Float16(-1));
  for (std::size_t i = 0; i < kCount; ++i) own.push_back(value(0, i));
  if (in_place) result = own;
  std::vector<float> partials(kCount);
  Reducer::Shape shape;
  shape.own = {reinterpret_cast<const std::byte*>(in_place ? result.data() : own.data()),
               kSlotBytes};
  shape.accumulator = {reinterpret_cast<std::byte*>(result.data()), kSlotBytes};
  shape.bytes = kCount * 2;
  shape.slot_bytes = kSlotBytes;
  shape.type = DataType::float16;
  shape.world = ranks;
  shape.rescale = Rescale::none;
  shape.partials = partials.data();
  Reducer reducer(shape);
  std::vector<float> sums(own.begin(), own.end());
  for (std::uint32_t slot = 0; slot < reducer.slots(); ++slot) {
    const std::size_t first = slot * HalfRig::kSlotElements;
    for (std::uint32_t arrival = 0; arrival < arrivals; ++arrival) {
      const auto from = static_cast<Rank>(1 + (arrival + slot) % (ranks - 1));
      std::vector<Float16> payload;
      for (std::size_t i = first; i < std::min(kCount, first + HalfRig::kSlotElements); ++i) {
        payload.push_back(value(from, i));
        sums[i] += payload.back();
      }
      testing_support::deliver(reducer, from, slot, std::as_bytes(std::span(payload)));
    }
  }
  reducer.settle(reducer.slots() - reducer.ready());
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(result[i].bits(), Float16(sums[i]).bits()) << i;
  }
  ASSERT_EQ(partials.size(), kCount);
}

TEST(ReducerTest, half__any_number_of_contributions_is_rounded_once) {
  for (const bool in_place : {false, true}) {
    for (std::uint32_t ranks = 3; ranks <= 8; ++ranks) {
      for (std::uint32_t arrivals = 0; arrivals < ranks; ++arrivals) {
        expect_rounded_once(ranks, arrivals, in_place);
      }
    }
  }
}

TEST(ReducerTest, half__two_ranks_need_no_partial_results) {
  EXPECT_FALSE(Reducer::uses_partials(DataType::float16, ReduceOp::sum, 2));
  EXPECT_TRUE(Reducer::uses_partials(DataType::float16, ReduceOp::sum, 3));
  EXPECT_FALSE(Reducer::uses_partials(DataType::float16, ReduceOp::max, 4));
  EXPECT_FALSE(Reducer::uses_partials(DataType::float32, ReduceOp::sum, 4));
  HalfRig rig(ReduceOp::avg, false, 2);
  rig.deliver(0, 0);
  rig.reducer->settle(1);
  EXPECT_EQ(rig.result_of(0), 512) << "1024.5 / 2 = 512.25, to even";
  EXPECT_EQ(rig.result_of(1), 0.5f);
}

TEST(ReducerTest, lend__slots_of_the_accumulator_with_the_same_contributors) {
  Rig rig(ReduceOp::sum);
  for (const Rank from : {Rank{0}, Rank{2}, Rank{3}}) rig.deliver(from, 2);
  for (const Rank from : {Rank{0}, Rank{3}}) {
    for (const std::uint32_t slot : {0u, 1u}) rig.deliver(from, slot);
  }
  const OutgoingRun whole = rig.reducer->lend(2, 1);
  EXPECT_EQ(whole.count, 1u);
  EXPECT_EQ(whole.contributors, kAll);
  EXPECT_EQ(whole.payload, reinterpret_cast<const std::byte*>(rig.result.data()) + 128);
  const OutgoingRun lacking = rig.reducer->lend(0, 3);
  EXPECT_EQ(lacking.count, 2u);
  EXPECT_EQ(lacking.contributors, kAll & ~bit(2));
  EXPECT_EQ(lacking.stride, 64u);
}

TEST(ReducerTest, shape__64_ranks_use_all_bits_and_an_empty_shard_is_ready) {
  Rig rig(ReduceOp::sum, false, 64);
  for (Rank from = 0; from < 64; ++from) {
    if (from != kSelf) rig.deliver(from, 0);
  }
  EXPECT_EQ(rig.reducer->ready(), 1u);
  EXPECT_EQ(rig.reducer->contributors()[0], ~0ull);

  Reducer::Shape nothing;
  nothing.slot_bytes = kSlotBytes;
  nothing.world = 2;
  const Reducer empty(nothing);
  EXPECT_EQ(empty.slots(), 0u);
  EXPECT_EQ(empty.ready(), 0u);
}

}  // namespace
}  // namespace tarpon::reducer_test
