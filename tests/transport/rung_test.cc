// The rule of `auto`.
#include "transport/rung.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tarpon::rung_test {
namespace {

using ::testing::HasSubstr;

TEST(Rung, choose_rung__zero_copy_before_io_uring_before_mmsg) {
  EXPECT_EQ(choose_rung({"", ""}).rung, Rung::xdp);
  EXPECT_EQ(choose_rung({"", "forbidden"}).rung, Rung::xdp);
  const RungChoice uring = choose_rung({"not loaded on eth0", ""});
  EXPECT_EQ(uring.rung, Rung::uring);
  EXPECT_EQ(uring.reason, "io_uring is usable; not AF_XDP: not loaded on eth0");
  const RungChoice mmsg = choose_rung({"not loaded on eth0", "io_uring is forbidden"});
  EXPECT_EQ(mmsg.rung, Rung::mmsg);
  EXPECT_THAT(mmsg.reason, HasSubstr("io_uring is forbidden"));
  EXPECT_THAT(mmsg.reason, HasSubstr("not loaded on eth0"));
}

TEST(Rung, buffers_for_mtu__one_up_to_the_limit) {
  EXPECT_EQ(buffers_for_mtu(1500), 1u);
  EXPECT_EQ(buffers_for_mtu(kSingleBufferMtu), 1u);
  EXPECT_GE(buffers_for_mtu(kSingleBufferMtu + 1), 2u);
  EXPECT_EQ(buffers_for_mtu(9000), 3u);
}

TEST(Rung, read_rung_facts__nothing_is_loaded_on_loopback) {
  EXPECT_THAT(read_rung_facts("lo", 65536).against_zero_copy, HasSubstr("lo"));
  EXPECT_THAT(read_rung_facts("no-such-one", 1500).against_zero_copy, HasSubstr("no-such-one"));
}

}  // namespace
}  // namespace tarpon::rung_test
