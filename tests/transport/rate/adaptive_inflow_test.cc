// The window and the pace, against links in arithmetic.
#include "transport/rate/adaptive_inflow.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/inflow_link.h"

namespace tarpon::adaptive_inflow_test {
namespace {

constexpr std::uint64_t kMost = 16 << 20;
constexpr std::uint64_t kLeast = 32 * kPacket;

TEST(AdaptiveInflowTest, queue__the_window_finds_what_fits_and_the_link_stays_busy) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link;
  link.run(inflow, 1s);
  link.forget();
  link.run(inflow, 2s);
  EXPECT_LT(link.lost_share(), 0.005);
  EXPECT_GT(static_cast<double>(link.delivered_bytes) / 2, 0.85 * link.bytes_per_second);
  EXPECT_FALSE(inflow.paced());
}

TEST(AdaptiveInflowTest, policer__the_rate_that_is_delivered_is_found) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link{.bytes_per_second = 125e6, .queue_bytes = 0};
  link.run(inflow, 2s);
  EXPECT_TRUE(inflow.paced());
  link.forget();
  link.run(inflow, 4s);
  EXPECT_LT(link.lost_share(), 0.005);
  EXPECT_GT(static_cast<double>(link.delivered_bytes) / 4, 0.85 * link.bytes_per_second);
}

TEST(AdaptiveInflowTest, random_loss__is_the_links_own_and_slows_nothing) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link{.bytes_per_second = 200e9, .own_loss = 0.01};
  link.run(inflow, 2s);
  EXPECT_EQ(inflow.window(), kMost);
  EXPECT_FALSE(inflow.paced());
  EXPECT_NEAR(inflow.own_loss(), 0.01, 0.004);
}

TEST(AdaptiveInflowTest, random_loss__on_a_link_that_queues_leaves_it_busy) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link{.own_loss = 0.01};
  link.run(inflow, 2s);
  link.forget();
  link.run(inflow, 2s);
  EXPECT_GT(static_cast<double>(link.delivered_bytes) / 2, 0.85 * link.bytes_per_second);
}

TEST(AdaptiveInflowTest, clean_link__gets_all_that_the_buffers_hold) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link{.bytes_per_second = 20e9, .queue_bytes = 64e6};
  link.run(inflow, 1s);
  EXPECT_EQ(inflow.window(), kMost);
  EXPECT_FALSE(inflow.paced());
}

TEST(AdaptiveInflowTest, deep_queue__is_not_filled) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link{.queue_bytes = 64e6};
  link.run(inflow, 1s);
  link.forget();
  link.run(inflow, 1s);
  EXPECT_LT(static_cast<double>(inflow.window()), 10e-3 * link.bytes_per_second);
  EXPECT_GT(static_cast<double>(link.delivered_bytes), 0.95 * link.bytes_per_second);
}

/// Share of packets lost by four receivers behind one queue, of which each sees the packets of the
/// others there.
double lost_by_four(std::uint32_t siblings) {
  std::vector<std::unique_ptr<AdaptiveInflow>> rules;
  std::vector<InflowLink> links(4);
  for (std::size_t i = 0; i < links.size(); ++i) {
    rules.push_back(std::make_unique<AdaptiveInflow>(kLeast, kMost, siblings));
  }
  std::uint64_t sent = 0, lost = 0;
  for (int round = 0; round < 8000; ++round) {
    for (std::size_t i = 0; i < links.size(); ++i) {
      double others = 0;
      for (std::size_t j = 0; j < links.size(); ++j) {
        if (i != j) others += static_cast<double>(rules[j]->window());
      }
      links[i].others = std::min(others, links[i].queue_bytes);
      if (round == 4000) links[i].forget();
      links[i].round(*rules[i]);
    }
  }
  for (const InflowLink& link : links) {
    sent += link.sent;
    lost += link.lost;
  }
  return static_cast<double>(lost) / static_cast<double>(sent);
}

TEST(AdaptiveInflowTest, siblings__give_way_to_one_another) {
  EXPECT_LT(lost_by_four(4), 0.02);
  EXPECT_GT(lost_by_four(1), 0.02);
}

TEST(AdaptiveInflowTest, others_in_the_queue__are_not_left_the_link_for_a_few_losses) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link{.others = 200e3};
  link.run(inflow, 1s);
  link.forget();
  link.run(inflow, 2s);
  // Half of the queue is ours, so half of the link is.
  EXPECT_GT(static_cast<double>(link.delivered_bytes) / 2, 0.47 * link.bytes_per_second);
  EXPECT_LT(link.lost_share(), 0.1);
}

TEST(AdaptiveInflowTest, slower_and_faster_again__is_followed) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link;
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

TEST(AdaptiveInflowTest, own_loss__of_a_fifth_is_not_taken_for_a_policer) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link{.queue_bytes = 64e6, .own_loss = 0.2};
  link.run(inflow, 4s);
  link.forget();
  link.run(inflow, 2s);
  EXPECT_GT(static_cast<double>(link.delivered_bytes), 0.5 * 2 * link.bytes_per_second);
}

TEST(AdaptiveInflowTest, paced__grants_are_spaced_by_the_rate) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link{.bytes_per_second = 125e6, .queue_bytes = 0};
  link.run(inflow, 2s);
  ASSERT_TRUE(inflow.paced());
  const Time before = link.now + 1s;
  inflow.granted(before, 125'000);  // after a pause a late wake-up is made good
  const Time first = inflow.next_grant();
  inflow.granted(before, 125'000);
  const double seconds = std::chrono::duration<double>(inflow.next_grant() - first).count();
  EXPECT_NEAR(seconds, 125'000 / inflow.pace().bytes_per_second(), 1e-6);
}

TEST(AdaptiveInflowTest, unasked__lost_slots_lower_how_many_may_come) {
  AdaptiveInflow inflow(kLeast, kMost);
  Time now{};
  const auto interval = [&](std::uint32_t lost) {
    for (int packet = 0; packet < 1024; ++packet) inflow.arrived(kPacket, false);
    for (int packet = 0; packet < 64; ++packet) inflow.arrived(kPacket, true);
    inflow.overtaken(0, lost);
    inflow.round_trip(100us);
    now += 1ms;
    inflow.judge(now);
  };
  interval(0);
  EXPECT_EQ(inflow.advertised(), 0u);
  interval(6);
  EXPECT_EQ(inflow.advertised(), 7u);
  interval(6);
  EXPECT_EQ(inflow.advertised(), 3u);
  interval(0);
  EXPECT_EQ(inflow.advertised(), 4u);
  EXPECT_EQ(inflow.window(), 4u << 20) << "it still doubles: such losses tell nothing of rates";
}

TEST(AdaptiveInflowTest, unasked_slots__grow_with_what_is_advertised) {
  const AdaptiveInflow inflow(kLeast, kMost);
  EXPECT_EQ(inflow.unasked_slots(0, 32), 32u);
  EXPECT_EQ(inflow.unasked_slots(1, 32), 4u);
  EXPECT_EQ(inflow.unasked_slots(15, 32), 32u);
  EXPECT_EQ(inflow.unasked_slots(15, 16), 16u);
  EXPECT_EQ(inflow.senders_at_once(1), 0u) << "the window limits instead";
}

TEST(AdaptiveInflowTest, flows_changed__ends_the_pace) {
  AdaptiveInflow inflow(kLeast, kMost);
  InflowLink link{.bytes_per_second = 125e6, .queue_bytes = 0};
  link.run(inflow, 2s);
  ASSERT_TRUE(inflow.paced());
  inflow.flows_changed();
  EXPECT_FALSE(inflow.paced());
}

}  // namespace
}  // namespace tarpon::adaptive_inflow_test
