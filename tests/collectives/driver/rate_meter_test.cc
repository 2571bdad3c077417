#include "collectives/driver/rate_meter.h"

#include <gtest/gtest.h>

namespace tarpon::rate_meter_test {
namespace {

using namespace std::chrono_literals;

TEST(RateMeterTest, rate__the_slower_direction_s_median_without_pauses) {
  RateMeter meter;
  EXPECT_FALSE(meter.on());
  meter.begin(1000);
  EXPECT_TRUE(meter.on());
  PortStatistics counts;
  counts.rx_bytes = 77;  // before the measurement
  Time now{};
  meter.note(counts, now);
  EXPECT_EQ(meter.rate(), 0);
  for (int i = 0; i < 300; ++i) {
    now += i % 100 == 50 ? 5s : 100us;
    counts.rx_bytes += 250;
    counts.tx_bytes += 500;
    meter.note(counts, now);
  }
  EXPECT_NEAR(meter.rate(), 2.5e6, 1e3);
  meter.begin(1000);
  EXPECT_EQ(meter.rate(), 0);
}

TEST(RateMeterTest, rate__follows) {
  RateMeter meter;
  meter.begin(1000);
  PortStatistics counts;
  Time now{};
  for (const Duration step : {Duration(1ms), Duration(2ms)}) {
    for (int i = 0; i < 100; ++i) {
      meter.note(counts, now += step);
      counts.rx_bytes += 1000;
      counts.tx_bytes += 3000;
    }
  }
  EXPECT_NEAR(meter.rate(), 0.5e6, 1e3);
}

}  // namespace
}  // namespace tarpon::rate_meter_test
