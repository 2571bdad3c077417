// Names of rank 0's host that appear late, or have no IPv4 address: in a mount namespace with
// /etc/hosts and /etc/resolv.conf of its own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "collectives/environment/interfaces.h"
#include "tests/support/rendezvous_job.h"

namespace tarpon::names_test {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

/// The files of a host that knows no name and asks no server.
class OwnNames {
 public:
  OwnNames() {
    std::string pattern = (fs::temp_directory_path() / "tarpon-names-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    std::ofstream(root_ / "hosts") << "127.0.0.1 localhost\n";
    std::ofstream(root_ / "resolv.conf") << "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
  }
  OwnNames(const OwnNames&) = delete;
  OwnNames& operator=(const OwnNames&) = delete;
  ~OwnNames() { fs::remove_all(root_); }

  void add(const std::string& line) const {
    std::ofstream(root_ / "hosts", std::ios::app) << line << "\n";
  }

  /// Runs `body` in a process that sees these files. Returns its value; 77: such a process cannot
  /// be made here.
  int run(const std::function<int()>& body) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto over = [this](const char* file) {
        return ::mount((root_ / file).c_str(), (fs::path("/etc") / file).c_str(), nullptr, MS_BIND,
                       nullptr) == 0;
      };
      const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                           ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                           over("hosts") && over("resolv.conf");
      ::_exit(mounted ? body() : 77);
    }
    int status = 0;
    if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
  }

 private:
  fs::path root_;
};

/// A process without threads forks these.
class NamesTest : public testing::Test {
 protected:
  void expect_good(const std::function<int()>& body) {
    const int code = names_.run(body);
    if (code == 77) GTEST_SKIP() << "needs root, for a mount namespace";
    EXPECT_EQ(code, 0);
  }

  static int said(const Error& error, const std::string& words) {
    if (error.message.find(words) != std::string::npos) return 0;
    std::fprintf(stderr, "%s\n", error.message.c_str());
    return 1;
  }

  OwnNames names_;
};

TEST_F(NamesTest, join__waits_for_a_name_that_appears_late) {
  expect_good([this] {
    const std::string port = free_address().substr(std::string("tcp://127.0.0.1").size());
    const std::string address = "tcp://late.tarpon.test" + port;
    std::thread late_name([this] {
      rendezvous::sleep_until(monotonic_now() + 500ms);
      names_.add("127.0.0.1 late.tarpon.test");
    });
    const auto joined = join_all(all_of(address, 3));
    late_name.join();
    for (const Joined& one : joined) {
      if (!one) return said(one.error(), "joined");
    }
    return 0;
  });
}

TEST_F(NamesTest, source_address_towards__waits_for_a_name_that_appears_late) {
  expect_good([this] {
    std::thread late_name([this] {
      rendezvous::sleep_until(monotonic_now() + 500ms);
      names_.add("127.0.0.1 late.tarpon.test");
    });
    const auto source = source_address_towards("late.tarpon.test", late());
    late_name.join();
    return source == "127.0.0.1" ? 0 : 1;
  });
}

TEST_F(NamesTest, resolve__a_name_with_ipv6_alone__is_named_at_once) {
  names_.add("fe80::7 newer.tarpon.test");
  expect_good([] {
    const Joined member =
        ControlChannel::join(options("tcp://newer.tarpon.test:29500", 1, 2, kPatience));
    return member ? 1 : said(member.error(), "has IPv6 addresses only, and IPv6 is not supported");
  });
}

}  // namespace
}  // namespace tarpon::names_test
