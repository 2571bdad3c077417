// When the clock of an operation starts.
#include "transport/operation/begin_clock.h"

#include <gtest/gtest.h>

#include <vector>

#include "transport/peers/peer_clocks.h"

namespace tarpon::begin_clock_test {
namespace {

constexpr Time kNow = Time(1s);

TEST(BeginClockTest, is_due__when_half_of_the_ranks_have_begun) {
  BeginClock clock(kNow);
  EXPECT_TRUE(clock.is_due(1));
  EXPECT_TRUE(clock.is_due(2)) << "this rank is half of them";
  EXPECT_FALSE(clock.is_due(5));
  clock.note_begun();
  EXPECT_FALSE(clock.is_due(5));
  clock.note_begun();
  EXPECT_TRUE(clock.is_due(5));
  clock.start(kNow, {});
  EXPECT_FALSE(clock.is_due(5)) << "it has started";
}

TEST(BeginClockTest, start_at_half__at_the_begin_of_the_last_rank_of_the_first_half) {
  std::vector<PeerExchange> peers(4);  // this rank's own entry is never heard
  const Duration begins[] = {0ms, 5ms, 2ms, 9ms};
  for (const Rank peer : {Rank{1}, Rank{2}, Rank{3}}) {
    peers[peer].set_begin({kNow + begins[peer], begins[peer]});
    if (peer != 3) peers[peer].note_heard(false);
  }
  BeginClock clock(kNow);
  EXPECT_EQ(clock.first_half(), ~std::uint64_t{0}) << "no half has started it";
  clock.start_at_half(peers, 4, 0);
  EXPECT_EQ(clock.started(), kNow + 2ms);
  EXPECT_EQ(clock.read_after(), 2ms);
  EXPECT_EQ(clock.first_half(), 0b0101u) << "ranks 0 and 2";
  BeginClock alone(kNow);
  alone.start_at_half(peers, 2, 0);
  EXPECT_EQ(alone.started(), kNow);
  EXPECT_EQ(alone.first_half(), 0b0001u);
}

/// Peers began before this rank, no echo tells when. The clock starts at the own begin.
TEST(BeginClockTest, first_half__peers_without_an_echo_count_from_when_they_were_read) {
  std::vector<PeerExchange> peers(5);
  const Duration read[] = {0ms, 3ms, 1ms, 4ms, 2ms};
  for (const Rank peer : {Rank{1}, Rank{2}, Rank{3}, Rank{4}}) {
    peers[peer].set_begin({kNow, kUnknownAge, kNow - 10ms + read[peer]});
    peers[peer].note_heard(false);
  }
  BeginClock clock(kNow);
  clock.start_at_half(peers, 5, 0);
  EXPECT_EQ(clock.started(), kNow);
  EXPECT_EQ(clock.first_half(), 0b10110u) << "ranks 1, 2 and 4";
}

}  // namespace
}  // namespace tarpon::begin_clock_test
