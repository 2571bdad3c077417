// The receiver's control of what is on its way to it, against links in arithmetic.
#include "transport/endpoint/inflow.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "transport/random.h"

namespace tarpon::inflow_test {
namespace {

constexpr std::uint64_t kPacket = 1500;
constexpr std::uint64_t kMost = 16 << 20;

InflowOptions options() {
  return {.most_bytes = kMost, .least_bytes = 32 * kPacket};
}

/// Rounds of a window each over one link.
struct Link {
  double bytes_per_second = 250e6;
  double queue_bytes = 400e3;  // 0: a policer with `burst_bytes`
  double burst_bytes = 128e3;
  double own_loss = 0;
  double others = 0;  // bytes in the queue, always
  Duration base = 100us;

  Random random{1};
  Time now{};
  double tokens = 0, rest = 0;
  std::uint64_t sent = 0, lost = 0, delivered_bytes = 0;

  void round(Inflow& inflow) {
    double flight = static_cast<double>(inflow.window());
    double pause = std::chrono::duration<double>(base).count();
    if (inflow.pace().on()) {
      pause = 1e-3;
      flight = inflow.pace().bytes_per_second() * pause + rest;
    }
    const auto packets = static_cast<std::uint64_t>(flight) / kPacket;
    rest = flight - static_cast<double>(packets * kPacket);
    double fits = 0;
    const bool waits = queue_bytes > 0 && flight + others > bytes_per_second * pause;
    if (queue_bytes > 0) {
      fits = queue_bytes + bytes_per_second * pause - others;
      pause = std::max(pause, (std::min(flight, fits) + others) / bytes_per_second);
    } else {
      tokens = std::min(burst_bytes, tokens + bytes_per_second * pause);
      fits = tokens;
    }
    for (std::uint64_t i = 0; i < packets; ++i) {
      ++sent;
      const bool dropped = static_cast<double>((i + 1) * kPacket) > fits;
      if (dropped || random.chance(own_loss)) {
        ++lost;
        inflow.overtaken(1, 0);
        continue;
      }
      if (queue_bytes <= 0) tokens -= kPacket;
      delivered_bytes += kPacket;
      inflow.arrived(kPacket, false);
    }
    now += Duration(static_cast<std::int64_t>(pause * 1e9));
    // The first packet waits for none of ours, the last one for all.
    inflow.round_trip(base + Duration(static_cast<std::int64_t>(others / bytes_per_second * 1e9)));
    inflow.round_trip(waits ? Duration(static_cast<std::int64_t>(pause * 1e9)) : base);
    inflow.judge(now);
  }

  void run(Inflow& inflow, Duration time) {
    for (const Time end = now + time; now < end;) round(inflow);
  }

  void forget() { sent = lost = delivered_bytes = 0; }
  double lost_share() const { return static_cast<double>(lost) / static_cast<double>(sent); }
};

TEST(InflowTest, queue__the_window_finds_what_fits_and_the_link_stays_busy) {
  Inflow inflow(options());
  Link link;
  link.run(inflow, 1s);
  link.forget();
  link.run(inflow, 2s);
  EXPECT_LT(link.lost_share(), 0.005);
  EXPECT_GT(static_cast<double>(link.delivered_bytes) / 2, 0.85 * link.bytes_per_second);
  EXPECT_FALSE(inflow.pace().on());
}

TEST(InflowTest, policer__the_rate_that_is_delivered_is_found) {
  Inflow inflow(options());
  Link link{.bytes_per_second = 125e6, .queue_bytes = 0};
  link.run(inflow, 2s);
  EXPECT_TRUE(inflow.pace().on());
  link.forget();
  link.run(inflow, 4s);
  EXPECT_LT(link.lost_share(), 0.005);
  EXPECT_GT(static_cast<double>(link.delivered_bytes) / 4, 0.85 * link.bytes_per_second);
}

TEST(InflowTest, random_loss__is_the_links_own_and_slows_nothing) {
  Inflow inflow(options());
  Link link{.bytes_per_second = 200e9, .own_loss = 0.01};
  link.run(inflow, 2s);
  EXPECT_EQ(inflow.window(), kMost);
  EXPECT_FALSE(inflow.pace().on());
  EXPECT_NEAR(inflow.own_loss(), 0.01, 0.004);
}

TEST(InflowTest, random_loss__on_a_link_that_queues_leaves_it_busy) {
  Inflow inflow(options());
  Link link{.own_loss = 0.01};
  link.run(inflow, 2s);
  link.forget();
  link.run(inflow, 2s);
  EXPECT_GT(static_cast<double>(link.delivered_bytes) / 2, 0.85 * link.bytes_per_second);
}

TEST(InflowTest, clean_link__gets_all_that_the_buffers_hold) {
  Inflow inflow(options());
  Link link{.bytes_per_second = 20e9, .queue_bytes = 64e6};
  link.run(inflow, 1s);
  EXPECT_EQ(inflow.window(), kMost);
  EXPECT_FALSE(inflow.pace().on());
}

TEST(InflowTest, deep_queue__is_not_filled) {
  Inflow inflow(options());
  Link link{.queue_bytes = 64e6};
  link.run(inflow, 1s);
  link.forget();
  link.run(inflow, 1s);
  EXPECT_LT(static_cast<double>(inflow.window()), 10e-3 * link.bytes_per_second);
  EXPECT_GT(static_cast<double>(link.delivered_bytes), 0.95 * link.bytes_per_second);
}

TEST(InflowTest, others_in_the_queue__are_not_left_the_link_for_a_few_losses) {
  Inflow inflow(options());
  Link link{.others = 200e3};
  link.run(inflow, 1s);
  link.forget();
  link.run(inflow, 2s);
  // The queue holds as much again of ours, and what is on the wire.
  EXPECT_GT(static_cast<double>(link.delivered_bytes) / 2, 0.47 * link.bytes_per_second);
  EXPECT_LT(link.lost_share(), 0.1);
}

TEST(InflowTest, slower_and_faster_again__is_followed) {
  Inflow inflow(options());
  Link link;
  link.run(inflow, 1s);
  link.bytes_per_second = 60e6;
  link.queue_bytes = 100e3;
  link.run(inflow, 2s);
  link.forget();
  link.run(inflow, 1s);
  EXPECT_LT(link.lost_share(), 0.01);
  link.bytes_per_second = 250e6;
  link.queue_bytes = 64e6;
  link.run(inflow, 4s);
  link.forget();
  link.run(inflow, 1s);
  EXPECT_GT(static_cast<double>(link.delivered_bytes), 0.85 * link.bytes_per_second);
}

TEST(InflowTest, not_adapting__stays_at_the_buffers) {
  InflowOptions fixed = options();
  fixed.rule = InflowRule::buffers;
  Inflow inflow(fixed);
  Link link;
  link.run(inflow, 100ms);
  EXPECT_GT(link.lost_share(), 0.5);
  EXPECT_EQ(inflow.window(), kMost);
  EXPECT_FALSE(inflow.pace().on());
}

TEST(InflowTest, incast__one_more_sender_after_a_clean_round_and_half_after_a_loss) {
  InflowOptions counted = options();
  counted.rule = InflowRule::incast;
  counted.most_senders = 7;
  Inflow inflow(counted);
  Link wide{.queue_bytes = 64e6};
  wide.run(inflow, 1s);
  EXPECT_EQ(inflow.advertised(), 7u);
  EXPECT_EQ(inflow.window(), kMost);
  EXPECT_FALSE(inflow.pace().on());
  Link narrow;
  narrow.run(inflow, 100ms);
  EXPECT_EQ(inflow.advertised(), 1u);
}

TEST(InflowTest, own_loss__of_a_fifth_is_not_taken_for_a_policer) {
  Inflow inflow(options());
  Link link{.queue_bytes = 64e6, .own_loss = 0.2};
  link.run(inflow, 4s);
  link.forget();
  link.run(inflow, 2s);
  EXPECT_GT(static_cast<double>(link.delivered_bytes), 0.5 * 2 * link.bytes_per_second);
}

TEST(InflowTest, paced__grants_are_spaced_by_the_rate) {
  Inflow inflow(options());
  Link link{.bytes_per_second = 125e6, .queue_bytes = 0};
  link.run(inflow, 2s);
  ASSERT_TRUE(inflow.pace().on());
  const Time before = link.now + 1s;
  inflow.granted(before, 125'000);  // after a pause a late wake-up is made good
  const Time first = inflow.pace().next_grant();
  inflow.granted(before, 125'000);
  const double seconds = std::chrono::duration<double>(inflow.pace().next_grant() - first).count();
  EXPECT_NEAR(seconds, 125'000 / inflow.pace().bytes_per_second(), 1e-6);
}

}  // namespace
}  // namespace tarpon::inflow_test
