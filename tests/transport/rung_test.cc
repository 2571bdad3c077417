// The rule of `auto`.
#include "transport/rung.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cstdlib>

#include "tests/support/forbidden_call.h"
#include "tests/support/forked_child.h"

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

TEST(Rung, choose_rung__names_the_helper) {
  RungFacts facts;
  facts.served = xdp::ServedMode{};
  EXPECT_EQ(choose_rung(facts).reason, "AF_XDP is loaded, with zero-copy, by tarpon xdp serve");
}

TEST(Rung, read_rung_facts__nothing_is_loaded_on_loopback) {
  EXPECT_THAT(read_rung_facts("lo", 65536).against_zero_copy, HasSubstr("lo"));
  EXPECT_THAT(read_rung_facts("no-such-one", 1500).against_zero_copy, HasSubstr("no-such-one"));
}

TEST(Rung, read_rung_facts__io_uring_may_be_forbidden) {
  const auto against = [](std::uint32_t error, const char* text) {
    return testing_support::in_forked_child([&] {
      if (!testing_support::forbid_call(SYS_io_uring_setup, error)) return 1;
      const RungFacts facts = read_rung_facts("lo", 65536);
      EXPECT_THAT(facts.against_uring, HasSubstr(text));
      EXPECT_THAT(facts.against_uring, HasSubstr("TARPON_DATAPATH=mmsg"));
      return choose_rung(facts).rung == Rung::mmsg && !testing::Test::HasFailure() ? 0 : 2;
    });
  };
  EXPECT_EQ(against(EPERM, "forbidden, by the container's seccomp profile most likely"), 0);
  EXPECT_EQ(against(ENOSYS, "this kernel has none, or a seccomp profile hides it"), 0);
}

TEST(Rung, read_rung_facts__io_uring_is_refused_in_valgrind) {
  ASSERT_EQ(::setenv("LD_PRELOAD", "/usr/libexec/valgrind/vgpreload_core-amd64-linux.so", 1), 0);
  const std::string against = read_rung_facts("lo", 65536).against_uring;
  ASSERT_EQ(::unsetenv("LD_PRELOAD"), 0);
  EXPECT_THAT(against, HasSubstr("io_uring hangs in valgrind"));
  EXPECT_THAT(against, HasSubstr("--datapath mmsg"));
}

}  // namespace
}  // namespace tarpon::rung_test
