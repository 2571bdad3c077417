// Limits of the system, in words.
#include "xdp/base/system_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace tarpon::system_limits_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(SystemLimits, with_limit__names_the_value_and_the_remedy) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(with_limit(Error::system(EMFILE, "socket")).message,
            "socket: Too many open files: this process may open " + std::to_string(limit.rlim_cur) +
                " files (RLIMIT_NOFILE): raise `ulimit -n`");
  EXPECT_THAT(with_limit(Error::system(ENFILE, "socket")).message, HasSubstr("fs.file-max"));
  EXPECT_EQ(with_limit(Error::system(EINVAL, "socket")).message, "socket: Invalid argument");
}

TEST(SystemLimits, start_error__names_the_limits_of_user_and_control_group) {
  const Error error = start_error(EAGAIN, "cannot start rank 3");
  EXPECT_EQ(error.code, Error::Code::io);
  EXPECT_THAT(error.message,
              AllOf(StartsWith("cannot start rank 3: Resource temporarily unavailable: this user "),
                    HasSubstr("raise `ulimit -u`"), HasSubstr("pids.max")));
}

TEST(SystemLimits, check_threads__within_the_limit) {
  EXPECT_TRUE(check_threads(0));
  EXPECT_TRUE(check_threads(3));
}

/// The limit does not bind root, so a child becomes another user.
TEST(SystemLimits, check_threads__above_the_limit) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit one{1, 1};
    if (::setrlimit(RLIMIT_NPROC, &one) != 0 || ::setuid(65'533) != 0) ::_exit(3);
    const auto allowed = check_threads(2);
    const bool named = !allowed &&
                       allowed.error().message.starts_with("cannot start 2 threads: ") &&
                       allowed.error().message.find("may have 1 processes") != std::string::npos;
    ::_exit(named ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tarpon::system_limits_test
