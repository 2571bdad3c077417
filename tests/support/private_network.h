// A network namespace for this test program alone, with veth pairs. It goes with the process,
// however that ends.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace tarpon::testing_support {

/// Why this process cannot have one; empty when it has.
inline const std::string& private_network() {
  static const std::string reason = [] {
    if (::unshare(CLONE_NEWNET) != 0) {
      return std::string("no network namespace: ") + std::strerror(errno);
    }
    return std::string();
  }();
  return reason;
}

#define SKIP_WITHOUT_PRIVATE_NETWORK()                              \
  do {                                                              \
    if (!::tarpon::testing_support::private_network().empty())      \
      GTEST_SKIP() << ::tarpon::testing_support::private_network(); \
  } while (false)

inline void run_command(const std::string& command) {
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

/// Two ends in the same namespace, both up, without IPv6 chatter.
class VethPair {
 public:
  explicit VethPair(int mtu = 1500, int queues = 1) {
    const std::string count =
        " numtxqueues " + std::to_string(queues) + " numrxqueues " + std::to_string(queues);
    run_command("ip link add va" + count + " type veth peer name vb" + count);
    for (const char* end : {"va", "vb"}) {
      run_command(std::string("ip link set ") + end + " addrgenmode none mtu " +
                  std::to_string(mtu) + " up");
    }
  }
  ~VethPair() { run_command("ip link del va"); }
  VethPair(const VethPair&) = delete;
  VethPair& operator=(const VethPair&) = delete;

  unsigned a() const { return ::if_nametoindex("va"); }
  unsigned b() const { return ::if_nametoindex("vb"); }
};

/// Another namespace, for the far end of a pair. It goes with its process, and that with us.
class FarNamespace {
 public:
  FarNamespace() {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const char done = ::unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
      if (::write(ready[1], &done, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char done = 0;
    EXPECT_EQ(::read(ready[0], &done, 1), 1);
    EXPECT_EQ(done, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~FarNamespace() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  FarNamespace(const FarNamespace&) = delete;
  FarNamespace& operator=(const FarNamespace&) = delete;

  void take(const std::string& interface) const {
    run_command("ip link set " + interface + " netns " + std::to_string(child_));
  }
  void run(const std::string& command) const {
    run_command("nsenter --net=" + path() + " " + command);
  }
  std::string path() const { return "/proc/" + std::to_string(child_) + "/ns/net"; }

 private:
  pid_t child_ = 0;
};

/// This thread is in `far` while it lives: what it opens belongs there.
class Inside {
 public:
  explicit Inside(const FarNamespace& far) : home_(::open("/proc/thread-self/ns/net", O_RDONLY)) {
    enter(::open(far.path().c_str(), O_RDONLY));
  }
  ~Inside() { enter(home_); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  static void enter(int name_space) {
    EXPECT_EQ(::setns(name_space, CLONE_NEWNET), 0) << std::strerror(errno);
    ::close(name_space);
  }
  int home_;
};

}  // namespace tarpon::testing_support
