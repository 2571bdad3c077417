// AllReduce by AF_XDP between the guest's two hosts, by the tool, as a user would start it.
#include <gtest/gtest.h>

#include "tests/guest/jobs.h"
#include "xdp/attached.h"

namespace tarpon::guest {
namespace {

using ZeroCopyAllreduceTest = ZeroCopyTest;

TEST(AllreduceTest, over_af_xdp__is_exact_and_leaves_nothing_attached) {
  set_mtu(1500);
  allreduce({{"--datapath", "xdp"}, best_copy_mode()});
  for (const Host& host : kHosts) {
    const auto attached = xdp::attached_to(enter(host));
    ASSERT_TRUE(attached) << attached.error().message;
    EXPECT_FALSE(*attached);
  }
}

TEST(AllreduceTest, over_the_kernel__is_exact) {
  set_mtu(1500);
  for (const char* datapath : {"uring", "mmsg"}) {
    SCOPED_TRACE(datapath);
    allreduce({{"--datapath", datapath}, "asked for", datapath});
  }
}

TEST(AllreduceTest, without_the_program__auto_takes_io_uring) {
  set_mtu(1500);
  allreduce({{}, "not loaded", "uring"});
}

TEST_F(ZeroCopyAllreduceTest, is_exact_with_the_largest_frames_of_one_buffer) {
  set_mtu(3498);
  allreduce({{"--datapath", "xdp"}, "zero-copy"});
}

TEST_F(ZeroCopyAllreduceTest, takes_copy_mode_and_says_so_above_one_buffer) {
  set_mtu(9000);
  allreduce({{"--datapath", "xdp"}, "copy mode"});
}

TEST_F(ZeroCopyAllreduceTest, is_what_auto_takes_where_the_program_is_loaded) {
  set_mtu(1500);
  for (const Host& host : kHosts) run_on(host, {"tarpon", "xdp", "load", host.interface});
  allreduce({{}, "zero-copy"});
  expect_program_at_work();
  for (const Host& host : kHosts) run_on(host, {"tarpon", "xdp", "unload", host.interface});
}

}  // namespace
}  // namespace tarpon::guest
