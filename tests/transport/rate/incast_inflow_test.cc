// How many senders a receiver takes at once.
#include "transport/rate/incast_inflow.h"

#include <gtest/gtest.h>

#include "tests/support/inflow_link.h"

namespace tarpon::incast_inflow_test {
namespace {

constexpr std::uint64_t kMost = 16 << 20;

TEST(IncastInflowTest, advertised__one_more_sender_after_a_clean_round_and_half_after_a_loss) {
  IncastInflow inflow(kMost, 7);
  EXPECT_EQ(inflow.advertised(), 3u);
  InflowLink wide{.queue_bytes = 64e6};
  wide.run(inflow, 1s);
  EXPECT_EQ(inflow.advertised(), 7u);
  EXPECT_EQ(inflow.window(), kMost);
  EXPECT_FALSE(inflow.paced());
  InflowLink narrow;
  narrow.run(inflow, 100ms);
  EXPECT_EQ(inflow.advertised(), 1u);
}

TEST(IncastInflowTest, advertised__fits_its_header_field) {
  EXPECT_EQ(IncastInflow(kMost, 63).advertised(), 7u);
  EXPECT_EQ(IncastInflow(kMost, 1).advertised(), 1u);
}

TEST(IncastInflowTest, senders_at_once__is_what_a_peer_advertises) {
  const IncastInflow inflow(kMost, 7);
  EXPECT_EQ(inflow.senders_at_once(5), 5u);
  EXPECT_EQ(inflow.unasked_slots(5, 32), 32u) << "all of the initial credit";
}

}  // namespace
}  // namespace tarpon::incast_inflow_test
