// The work on the buffers of a call in pieces, and how long it takes.
#include "collectives/engine/call/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "collectives/engine/learning/work_rate.h"

namespace tarpon::work_test {
namespace {

using testing::ElementsAre;

TEST(Work, runs_at_once_what_fits_a_piece_and_the_rest_in_order) {
  Work work(100);
  std::vector<std::uint64_t> done;
  const auto units = [&](std::uint64_t from) {
    return [&done, from](std::uint64_t first, std::uint64_t count) {
      for (std::uint64_t i = first; i < first + count; ++i) done.push_back(from + i);
    };
  };
  work.add(10, 10, units(0));
  EXPECT_EQ(done.size(), 10u);
  EXPECT_TRUE(work.idle());
  work.add(5, 30, units(10));
  work.add(1, 10, units(15));
  work.add(2, 1000, units(16));
  EXPECT_EQ(done.size(), 10u);
  std::vector<std::uint64_t> bytes;
  while (work.has_piece()) {
    const Piece piece = work.take();
    EXPECT_FALSE(work.has_piece());
    EXPECT_FALSE(work.idle());
    piece.run();
    work.ended(3us);
    bytes.push_back(piece.bytes);
  }
  EXPECT_THAT(bytes, ElementsAre(90, 60, 10, 1000, 1000));
  for (std::uint64_t i = 0; i < 18; ++i) EXPECT_EQ(done[i], i);
  EXPECT_EQ(work.taken_bytes(), 2160u) << "without the work that ran at once";
  EXPECT_EQ(work.took(), Duration(15us));
}

TEST(Work, pace__is_the_time_of_the_shorter_one_of_the_latest_two_pieces) {
  Work work(1);
  work.add(6, 1, [](std::uint64_t, std::uint64_t) {});
  const auto run_one = [&work](Duration took) {
    work.take();
    work.ended(took);
  };
  run_one(7us);
  EXPECT_EQ(work.pace(), Duration::zero()) << "one piece tells nothing";
  run_one(900us);
  EXPECT_EQ(work.pace(), Duration(7us));
  run_one(800us);
  EXPECT_EQ(work.pace(), Duration(800us));
  work.restart_pace();
  run_one(5us);
  EXPECT_EQ(work.pace(), Duration::zero());
  run_one(6us);
  EXPECT_EQ(work.pace(), Duration(5us));
}

TEST(Work, clear__drops_pieces_that_were_not_taken_and_lets_the_taken_one_end) {
  Work work(1);
  int units = 0;
  work.add(3, 1,
           [&units](std::uint64_t, std::uint64_t count) { units += static_cast<int>(count); });
  const Piece piece = work.take();
  work.clear();
  EXPECT_FALSE(work.idle());
  EXPECT_FALSE(work.has_piece());
  piece.run();
  work.ended(1us);
  EXPECT_TRUE(work.idle());
  EXPECT_EQ(units, 1);
}

/// Work whose copies can be refused.
struct Refusing {
  Refusing(int& units, const bool& refuses) : units_(&units), refuses_(&refuses) {}
  Refusing(const Refusing& other) : units_(other.units_), refuses_(other.refuses_) {
    if (*refuses_) throw std::bad_alloc();
  }
  Refusing& operator=(const Refusing&) = delete;
  void operator()(std::uint64_t, std::uint64_t count) const { *units_ += static_cast<int>(count); }

  int* units_;
  const bool* refuses_;
};

TEST(Work, take__changes_nothing_where_memory_is_refused) {
  Work work(1);
  int units = 0;
  bool refuses = false;
  work.add(3, 1, Refusing(units, refuses));
  refuses = true;
  EXPECT_THROW(work.take(), std::bad_alloc);
  EXPECT_TRUE(work.has_piece()) << "no piece runs";
  refuses = false;
  work.take().run();
  work.ended(1us);
  EXPECT_EQ(units, 1);
  refuses = true;
  work.run_all();
  EXPECT_EQ(units, 3);
  EXPECT_TRUE(work.idle());
  EXPECT_EQ(work.taken_bytes(), 1u);
}

TEST(WorkRate, is_the_90th_percentile_of_the_last_20_calls_per_byte) {
  WorkRate rate;
  EXPECT_EQ(rate.of(3000), Duration(1us)) << "unknown";
  rate.learn(1000, 5us, false);
  EXPECT_EQ(rate.of(2000), Duration(10us));
  for (int call = 1; call <= 20; ++call) rate.learn(500, call * 1us, false);
  EXPECT_EQ(rate.of(500), Duration(18us));
  for (int call = 0; call < 20; ++call) rate.learn(1 << 20, Duration::zero(), false);
  EXPECT_EQ(rate.of(500), Duration::zero());
}

TEST(WorkRate, is_that_of_cut_calls_once_one_is_known) {
  WorkRate rate;
  rate.learn(1000, 1us, false);
  rate.learn(1000, 2us, true);
  for (int call = 0; call < 30; ++call) rate.learn(1000, 9us, false);
  EXPECT_EQ(rate.of(1000), Duration(2us));
}

}  // namespace
}  // namespace tarpon::work_test
