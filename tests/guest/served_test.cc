// Jobs of a user without privileges on AF_XDP, by `tarpon xdp serve` on each host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>

#include "tests/guest/jobs.h"

namespace tarpon::guest {
namespace {

constexpr const char* kSecretFile = "/tmp/job.secret";

class ServedTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ofstream("/etc/group") << "nogroup:x:" << kUser << ":\n";
    std::ofstream(kSecretFile) << "a secret of this test alone: 32 bytes or more\n";
    ASSERT_EQ(::chmod(kSecretFile, 0600), 0);
    ASSERT_EQ(::chown(kSecretFile, kUser, kUser), 0);
    const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};  // for ranks without CAP_IPC_LOCK
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &unlimited), 0);
  }

  void SetUp() override {
    set_mtu(1500);
    for (const Host& host : kHosts) {
      helpers_.push_back(std::make_unique<test::Process>(
          command_on(host, {"tarpon", "xdp", "serve", host.interface, "--group", "nogroup"})));
      ASSERT_TRUE(helpers_.back()->says("serves ranks at"));
    }
  }

  void TearDown() override {
    for (const auto& helper : helpers_) {
      ::kill(helper->pid(), SIGTERM);
      EXPECT_EQ(helper->wait().exit_code, 0);
    }
    for (const Host& host : kHosts) run_on(host, {"tarpon", "xdp", "unload", host.interface});
  }

 private:
  std::vector<std::unique_ptr<test::Process>> helpers_;
};

TEST_F(ServedTest, a_job_of_a_user_without_privileges__is_exact) {
  allreduce({.arguments = {"--datapath", "xdp"},
             .reason = std::string("by tarpon xdp serve: ") + best_copy_mode(),
             .user = true});
  expect_program_at_work();
}

TEST_F(ServedTest, a_job_with_sealed_packets__is_exact) {
  allreduce(
      {.arguments = {"--datapath", "xdp", "--integrity", "sealed", "--secret-file", kSecretFile},
       .reason = std::string("by tarpon xdp serve: ") + best_copy_mode(),
       .user = true});
  expect_program_at_work();
}

TEST_F(ServedTest, auto__takes_what_is_best) {
  const bool zero_copy = has_zero_copy();
  allreduce({.arguments = {},
             .reason = zero_copy ? "by tarpon xdp serve: zero-copy" : "not AF_XDP",
             .datapath = zero_copy ? "xdp" : "uring",
             .user = true});
}

}  // namespace
}  // namespace tarpon::guest
