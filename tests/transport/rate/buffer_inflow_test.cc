// The window that holds whatever is lost.
#include "transport/rate/buffer_inflow.h"

#include <gtest/gtest.h>

#include "tests/support/inflow_link.h"

namespace tarpon::buffer_inflow_test {
namespace {

constexpr std::uint64_t kMost = 16 << 20;

TEST(BufferInflowTest, window__stays_at_the_buffers) {
  BufferInflow inflow(kMost);
  InflowLink link;
  link.run(inflow, 100ms);
  EXPECT_GT(link.lost_share(), 0.5);
  EXPECT_EQ(inflow.window(), kMost);
  EXPECT_FALSE(inflow.paced());
}

TEST(BufferInflowTest, advertised__nothing_and_what_peers_advertise_limits_nothing) {
  const BufferInflow inflow(kMost);
  EXPECT_EQ(inflow.advertised(), 0u);
  EXPECT_EQ(inflow.unasked_slots(1, 32), 32u);
  EXPECT_EQ(inflow.senders_at_once(1), 0u);
}

}  // namespace
}  // namespace tarpon::buffer_inflow_test
