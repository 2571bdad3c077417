// A veth pair whose near end `tarpon xdp serve` serves, and processes of ordinary users beside.
#pragma once

#include <arpa/inet.h>
#include <grp.h>
#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/child_program.h"
#include "tests/support/xdp_network.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/helper_messages.h"
#include "xdp/program.h"
#include "xdp/queue.h"
#include "xdp/served_port.h"

namespace tarpon::test {

// Two users of this program alone: the kernel counts locked memory by user.
inline const uid_t kUser = 100'000 + 2 * static_cast<uid_t>(::getpid());
inline const uid_t kOtherUser = kUser + 1;
inline constexpr gid_t kGroup = 65534;       // of the helper's socket
inline constexpr gid_t kOtherGroup = 65533;  // may not connect

/// A process without capabilities. It writes what `body` returns; that is empty where all is well.
class UserProcess {
 public:
  UserProcess(uid_t user, const std::function<std::string()>& body, gid_t group = kGroup) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::alarm(120);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const bool ordinary = ::setgroups(0, nullptr) == 0 && ::setresgid(group, group, group) == 0 &&
                            ::setresuid(user, user, user) == 0;
      ::prctl(PR_SET_DUMPABLE, 1);  // else /proc/self is root's
      const std::string text = ordinary ? body() : "cannot become another user";
      ::_exit(::write(ends[1], text.data(), text.size()) < 0 ? 1 : 0);
    }
    ::close(ends[1]);
    out_ = FileDescriptor(ends[0]);
  }
  ~UserProcess() { kill(); }
  UserProcess(const UserProcess&) = delete;
  UserProcess& operator=(const UserProcess&) = delete;

  /// What it writes until it ends.
  std::string text() {
    std::string all;
    char part[512];
    for (ssize_t got = 0; (got = ::read(out_.get(), part, sizeof part)) > 0;) {
      all.append(part, static_cast<std::size_t>(got));
    }
    ::waitpid(std::exchange(child_, 0), nullptr, 0);
    return all;
  }

  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(std::exchange(child_, 0), nullptr, 0);
  }

 private:
  pid_t child_ = 0;
  FileDescriptor out_;
};

/// What `body` returns in a process of `user`.
inline std::string as_user(uid_t user, const std::function<std::string()>& body,
                           gid_t group = kGroup) {
  return UserProcess(user, body, group).text();
}

/// A UDP socket at `address`, with one of its ports.
inline FileDescriptor udp_socket(const std::string& address) {
  FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in local{};
  local.sin_family = AF_INET;
  ::inet_pton(AF_INET, address.c_str(), &local.sin_addr);
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_IP, IP_FREEBIND, &on, sizeof on);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&local), sizeof local), 0);
  return socket;
}

class ServedNetworkTest : public XdpNetworkTest {
 protected:
  static constexpr const char* kHere = "10.9.9.9";
  static constexpr const char* kThere = "10.9.9.10";

  void SetUp() override {
    XdpNetworkTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(::mount("tarpon-test", "/run", "tmpfs", 0, nullptr), 0) << std::strerror(errno);
    far_.emplace();
    far_->take("vb");
    far_->run("ip link set vb addrgenmode none up");
    far_->run(std::string("ip address add ") + kThere + "/24 dev vb");
    interface_ = pair_->a();
  }

  void TearDown() override {
    if (!far_) return;
    helper_.reset();
    pair_.reset();  // before the namespace of its other end takes both
    far_.reset();
    EXPECT_EQ(::umount2("/run", MNT_DETACH), 0) << std::strerror(errno);
  }

  static std::vector<std::string> serve_words(const std::string& interface) {
    const group* const found = ::getgrgid(kGroup);
    return {"xdp", "serve", interface, "--group", found == nullptr ? "" : found->gr_name};
  }

  void serve() {
    helper_ = std::make_unique<Process>(tool(serve_words("va")));
    ASSERT_TRUE(helper_->says("va: serves ranks at /run/tarpon/va.sock"));
  }

  void kill_helper() {
    ::kill(helper_->pid(), SIGKILL);
    helper_->wait();
  }

  /// A connection to the helper.
  static FileDescriptor connect() {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    xdp::helper_path("va").copy(address.sun_path, sizeof address.sun_path - 1);
    const auto* const to = reinterpret_cast<const sockaddr*>(&address);
    return ::connect(socket.get(), to, sizeof address) == 0 ? std::move(socket) : FileDescriptor();
  }

  /// The next reply, after at most ten seconds.
  static xdp::ReceivedMessage<xdp::HelperReply> reply_of(const FileDescriptor& helper) {
    for (int i = 0; i < 1000; ++i) {
      auto received = xdp::receive_reply(helper.get());
      if (received.state != xdp::MessageState::none) return received;
      ::usleep(10'000);
    }
    return {};
  }

  /// Why the helper refuses what was sent; that the connection ends then.
  static std::string reason_from(const FileDescriptor& helper) {
    const auto reply = reply_of(helper);
    if (reply.state != xdp::MessageState::whole || reply.message.refused == 0) {
      return "not refused";
    }
    const auto end = reply_of(helper);
    return end.state == xdp::MessageState::ended ? xdp::reason_of(reply.message) : "goes on";
  }

  static std::string reason_of(const xdp::HelperRequest& request, int descriptor = -1) {
    const FileDescriptor helper = connect();
    if (xdp::send_request(helper.get(), request, descriptor) != 0) return "not sent";
    return reason_from(helper);
  }

  /// The ports in the program.
  std::size_t open_ports() const {
    const auto program = xdp::Program::find(interface_);
    EXPECT_TRUE(program) << program.error().message;
    return program ? program->maps().ports().size() : 0;
  }

  bool ports_become(std::size_t wanted) const {
    for (int i = 0; i < 500; ++i) {
      if (open_ports() == wanted) return true;
      ::usleep(10'000);
    }
    return false;
  }

  /// Descriptors that the helper has open.
  std::ptrdiff_t descriptors() const {
    return std::distance(
        std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", helper_->pid())), {});
  }

  bool descriptors_become(std::ptrdiff_t wanted) const {
    for (int i = 0; i < 500; ++i) {
      if (descriptors() == wanted) return true;
      ::usleep(10'000);
    }
    return false;
  }

  std::optional<testing_support::FarNamespace> far_;
  std::unique_ptr<Process> helper_;
  unsigned interface_ = 0;
};

/// A rank's port on one queue of "va", by the helper.
struct ServedRank {
  FileDescriptor socket;
  std::unique_ptr<xdp::ServedPort> access;
  std::optional<xdp::Queue> queue;
  std::string error;  // empty: it is open

  explicit ServedRank(unsigned interface, std::uint32_t number = 0,
                      const char* address = "10.9.9.9")
      : socket(udp_socket(address)) {
    auto claimed = xdp::ServedPort::claim("va", socket.get(), 7);
    if (!claimed) {
      error = claimed.error().message;
      return;
    }
    access = std::move(*claimed);
    xdp::QueueOptions options;
    options.socket.interface = interface;
    options.socket.queue = number;
    options.socket.source = access->source();
    options.receive_frames = options.transmit_frames = 64;
    auto opened = xdp::Queue::open(options);
    if (!opened) {
      error = opened.error().message;
      return;
    }
    queue.emplace(std::move(*opened));
    if (const auto windows = access->open_port({}, {}); !windows) error = windows.error().message;
  }
};

}  // namespace tarpon::test
