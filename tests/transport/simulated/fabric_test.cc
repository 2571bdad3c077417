// Links joined to a network: hops, incast, shared core, background traffic, traces, determinism.
#include "transport/simulated/fabric.h"

#include <gtest/gtest.h>

#include <vector>

namespace tarpon::fabric_test {
namespace {

constexpr double kGigabit = 1e9;  // 8 ns a byte

struct Got {
  std::int64_t us = 0;
  LinkFate fate = LinkFate::delivered;
  std::uint64_t label = 0;
  bool operator==(const Got&) const = default;
};

/// Advances from event to event until nothing is under way.
std::vector<Got> drain(Fabric& fabric) {
  std::vector<Got> result;
  while (fabric.next_event() != kNever) {
    for (const Fabric::Outcome& outcome : fabric.advance(fabric.next_event())) {
      result.push_back({outcome.time.time_since_epoch() / 1us, outcome.fate, outcome.label});
    }
  }
  return result;
}

constexpr LinkFate kDelivered = LinkFate::delivered;

TEST(FabricTest, send__crosses_egress_core_and_ingress) {
  Fabric fabric({.egress = {.bits_per_second = kGigabit, .delay = 5us},
                 .ingress = {.bits_per_second = kGigabit / 2, .delay = 7us},
                 .core = {.bits_per_second = kGigabit, .delay = 11us}});
  EXPECT_EQ(fabric.next_event(), kNever);
  fabric.send(Time(1us), 0, 1, 1000, 77);
  EXPECT_EQ(fabric.next_event(), Time(1us));
  EXPECT_EQ(drain(fabric), (std::vector<Got>{{1 + 8 + 5 + 8 + 11 + 16 + 7, kDelivered, 77}}));
  EXPECT_EQ(fabric.statistics().delivered, 1u);
}

TEST(FabricTest, multicast__takes_the_egress_once_and_each_ingress) {
  Fabric fabric({.ranks = 4,
                 .egress = {.bits_per_second = kGigabit},
                 .ingress = {.bits_per_second = kGigabit / 2}});
  const std::vector<Fabric::Copy> copies{{1, 11}, {2, 12}, {3, 13}};
  fabric.multicast(Time(0us), 0, copies, 1000);
  fabric.send(Time(0us), 0, 1, 1000, 14);
  EXPECT_EQ(
      drain(fabric),
      (std::vector<Got>{
          {24, kDelivered, 11}, {24, kDelivered, 12}, {24, kDelivered, 13}, {40, kDelivered, 14}}));
}

TEST(FabricTest, multicast__that_the_egress_loses_reaches_no_rank) {
  Fabric fabric({.ranks = 3, .egress = {.loss = 1}});
  const std::vector<Fabric::Copy> copies{{1, 11}, {2, 12}};
  fabric.multicast(Time(0us), 0, copies, 1000);
  EXPECT_EQ(drain(fabric), (std::vector<Got>{{0, LinkFate::loss, 11}, {0, LinkFate::loss, 12}}));
}

TEST(FabricTest, advance__in_one_go_tells_the_same_as_event_by_event) {
  const auto load = [](Fabric& fabric) {
    for (std::uint64_t i = 0; i < 50; ++i) {
      fabric.send(Time(i * 1us), static_cast<Rank>(i % 3), 3, 1000, i);
    }
  };
  const FabricOptions options{
      .ranks = 4, .ingress = {.bits_per_second = kGigabit, .queue_bytes = 5000, .loss = 0.1}};
  Fabric a(options), b(options);
  load(a);
  load(b);
  const std::vector<Got> steps = drain(a);
  std::vector<Got> once;
  for (const Fabric::Outcome& outcome : b.advance(Time(1s))) {
    once.push_back({outcome.time.time_since_epoch() / 1us, outcome.fate, outcome.label});
  }
  EXPECT_EQ(steps, once);
  EXPECT_EQ(steps.size(), 50u);
}

TEST(FabricTest, incast__packets_meet_at_the_ingress_in_the_order_of_their_arrival) {
  Fabric fabric({.ranks = 4,
                 .ingress = {.bits_per_second = kGigabit},
                 .egress_of = {{0, {.delay = 30us}}, {1, {.delay = 10us}}, {2, {.delay = 20us}}}});
  for (Rank from = 0; from < 3; ++from) fabric.send(Time{}, from, 3, 2500, from);
  // 20 us each: 10 -> 30, then the one that came at 20, then the one that came at 30.
  EXPECT_EQ(drain(fabric),
            (std::vector<Got>{{30, kDelivered, 1}, {50, kDelivered, 2}, {70, kDelivered, 0}}));
}

TEST(FabricTest, incast__a_full_ingress_queue_drops_the_last) {
  Fabric fabric({.ranks = 5, .ingress = {.bits_per_second = kGigabit, .queue_bytes = 2000}});
  for (Rank from = 0; from < 4; ++from) fabric.send(Time(from * 1us), from, 4, 1000, from);
  EXPECT_EQ(drain(fabric), (std::vector<Got>{{2, LinkFate::queue, 2},
                                             {3, LinkFate::queue, 3},
                                             {8, kDelivered, 0},
                                             {16, kDelivered, 1}}));
  EXPECT_EQ(fabric.statistics().dropped_queue, 2u);
}

TEST(FabricTest, trains__are_dropped_whole_where_they_do_not_fit) {
  for (const bool trains : {false, true}) {
    Fabric fabric({.ranks = 3,
                   .ingress = {.bits_per_second = kGigabit, .queue_bytes = 5000},
                   .trains = trains});
    for (std::uint64_t i = 0; i < 4; ++i) fabric.send(Time{}, 0, 2, 1000, i);
    for (std::uint64_t i = 4; i < 8; ++i) fabric.send(Time{}, 1, 2, 1000, i);
    std::uint64_t of_second = 0;
    for (const Got& got : drain(fabric)) {
      if (got.fate == kDelivered && got.label >= 4) ++of_second;
    }
    EXPECT_EQ(of_second, trains ? 0 : 1);
    EXPECT_EQ(fabric.statistics().delivered, trains ? 4u : 5u);
  }
}

TEST(FabricTest, core__is_shared_by_all_pairs) {
  Fabric fabric({.ranks = 4, .core = {.bits_per_second = kGigabit}});
  fabric.send(Time{}, 0, 1, 1000, 0);
  fabric.send(Time{}, 2, 3, 1000, 1);
  EXPECT_EQ(drain(fabric), (std::vector<Got>{{8, kDelivered, 0}, {16, kDelivered, 1}}));
}

TEST(FabricTest, exceptions__replace_the_common_link_of_one_rank) {
  Fabric fabric({.ranks = 3,
                 .egress = {.delay = 1us},
                 .ingress = {.delay = 1us},
                 .egress_of = {{0, {.delay = 100us}}},
                 .ingress_of = {{2, {.loss = 1}}}});
  fabric.send(Time{}, 0, 1, 1000, 0);
  fabric.send(Time{}, 1, 0, 1000, 1);
  fabric.send(Time{}, 1, 2, 1000, 2);
  EXPECT_EQ(drain(fabric),
            (std::vector<Got>{{1, LinkFate::loss, 2}, {2, kDelivered, 1}, {101, kDelivered, 0}}));
  EXPECT_EQ(fabric.statistics().dropped_loss, 1u);
}

/// Bytes per second that get through to rank 1 from rank 0, which sends bursts of 20 packets at 1
/// Gb/s.
double throughput(Fabric& fabric) {
  constexpr auto kSpan = 100ms;
  std::uint64_t sent = 0;
  for (Time now{}; now < Time(kSpan); now += 240us) {
    static_cast<void>(fabric.advance(now));
    for (int i = 0; i < 20; ++i) fabric.send(now, 0, 1, 1500, sent++);
  }
  static_cast<void>(fabric.advance(Time(kSpan)));
  return static_cast<double>(fabric.statistics().delivered) * 1500 * 10;
}

TEST(FabricTest, background__takes_its_share_of_a_link) {
  FabricOptions options{.ranks = 3,
                        .ingress = {.bits_per_second = kGigabit, .queue_bytes = 64 << 10}};
  Fabric alone(options);
  EXPECT_NEAR(throughput(alone), 125e6, 2e6);
  EXPECT_EQ(alone.statistics().background_bytes, 0u);
  options.background = {{.from = 2, .to = 1, .bits_per_second = 4e8, .burst_bytes = 15'000}};
  Fabric shared(options);
  const double rate = throughput(shared);
  const double other = static_cast<double>(shared.statistics().background_bytes) * 10;
  EXPECT_NEAR(rate + other, 125e6, 3e6);  // the link stays full
  EXPECT_GT(other, 20e6);                 // 50e6 asked for, of 175e6 offered
  EXPECT_LT(other, 51e6);
  EXPECT_GT(shared.statistics().dropped_queue, 0u);
}

double background_rate(const Fabric& fabric, std::uint64_t before, Duration span) {
  return static_cast<double>(fabric.statistics().background_bytes - before) /
         std::chrono::duration<double>(span).count();
}

TEST(FabricTest, background__tcp_fills_a_link_and_yields) {
  FabricOptions options{.ranks = 3,
                        .ingress = {.bits_per_second = kGigabit, .queue_bytes = 64 << 10},
                        .background = {{.from = 2, .to = 1, .tcp = true}}};
  Fabric alone(options);
  static_cast<void>(alone.advance(Time(1s)));
  EXPECT_GT(background_rate(alone, 0, 1s), 0.95 * 125e6);
  // Half of the link goes to somebody who does not yield.
  Fabric shared(options);
  for (Time now{}; now < Time(1s); now += 24us) {
    static_cast<void>(shared.advance(now));
    shared.send(now, 0, 1, 1500, 0);
  }
  static_cast<void>(shared.advance(Time(1s)));
  EXPECT_NEAR(background_rate(shared, 0, 1s), 62.5e6, 6e6);
  EXPECT_GT(shared.statistics().delivered, 0.97 * 1e9 / 24e3);
}

TEST(FabricTest, background__tcp_slows_down_with_loss) {
  // Packets in flight are sqrt(0.53 * (1 + 0.7) / 2 / (1 - 0.7) / loss) in the mean: 12 at 1 %, in
  // round trips of 1.05 ms.
  FabricOptions options{.ranks = 2,
                        .ingress = {.delay = 1ms, .loss = 0.01},
                        .background = {{.from = 0, .to = 1, .tcp = true}}};
  Fabric fabric(options);
  static_cast<void>(fabric.advance(Time(20s)));
  EXPECT_NEAR(background_rate(fabric, 0, 20s) * 1.05e-3 / 1500, 12.3, 2);
}

TEST(FabricTest, background__alone_is_no_work) {
  Fabric fabric({.background = {{.from = 0, .to = 1, .bits_per_second = 1e8}}});
  EXPECT_EQ(fabric.next_event(), kNever);
  EXPECT_TRUE(fabric.advance(Time(100ms)).empty());
  EXPECT_NEAR(static_cast<double>(fabric.statistics().background_bytes), 1.25e6, 0.06e6);
  EXPECT_EQ(fabric.next_event(), kNever);
}

TEST(FabricTest, delay_trace__delays_what_its_rank_sends) {
  Fabric fabric(
      {.ranks = 2,
       .delay_trace = {
           {Time(10us), 0, 100us}, {Time(20us), 0, 0us}, {Time(30us), kUnknownRank, 5us}}});
  for (const auto at : {0us, 10us, 19us, 20us, 30us}) {
    fabric.send(Time(at), 0, 1, 1000, static_cast<std::uint64_t>(at.count()));
  }
  fabric.send(Time(15us), 1, 0, 1000, 99);
  EXPECT_EQ(drain(fabric), (std::vector<Got>{{0, kDelivered, 0},
                                             {15, kDelivered, 99},
                                             {20, kDelivered, 20},
                                             {35, kDelivered, 30},
                                             {110, kDelivered, 10},
                                             {119, kDelivered, 19}}));
}

std::uint64_t trace(std::uint64_t seed) {
  Fabric fabric({.ranks = 4,
                 .egress = {.bits_per_second = 2e9, .queue_bytes = 20'000, .loss = 0.01},
                 .ingress = {.bits_per_second = kGigabit / 2,
                             .queue_bytes = 20'000,
                             .tail = 3,
                             .tail_median = 30us,
                             .burst_loss_enter = 0.01,
                             .burst_loss_leave = 0.3},
                 .core = {.bits_per_second = 3e9,
                          .policer_bits_per_second = 2.5e9,
                          .policer_burst_bytes = 30'000},
                 .background = {{.from = 3, .to = 0, .bits_per_second = 3e8, .burst_bytes = 9000}},
                 .seed = seed});
  std::uint64_t hash = 14695981039346656037ull;
  const auto mix = [&hash](std::uint64_t value) { hash = (hash ^ value) * 1099511628211ull; };
  const auto collect = [&](Time now) {
    for (const Fabric::Outcome& outcome : fabric.advance(now)) {
      mix(static_cast<std::uint64_t>(outcome.time.time_since_epoch().count()));
      mix(static_cast<std::uint64_t>(outcome.fate));
      mix(outcome.label);
    }
  };
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const auto from = static_cast<Rank>(i % 4);
    collect(Time(i * 4us));
    fabric.send(Time(i * 4us), from, static_cast<Rank>((from + 1 + i / 4 % 3) % 4), 1500, i);
  }
  collect(Time(1s));
  const FabricStatistics& counted = fabric.statistics();
  EXPECT_EQ(
      counted.delivered + counted.dropped_loss + counted.dropped_policer + counted.dropped_queue,
      20'000u);
  for (const std::uint64_t count :
       {counted.delivered, counted.dropped_loss, counted.dropped_policer, counted.dropped_queue}) {
    EXPECT_GT(count, 0u);
  }
  return hash;
}

TEST(FabricTest, seed__fixes_every_fate_with_every_compiler) {
  EXPECT_EQ(trace(1), trace(1));
  EXPECT_NE(trace(1), trace(2));
  EXPECT_EQ(trace(1), 2169884396918855446u);
}

}  // namespace
}  // namespace tarpon::fabric_test
