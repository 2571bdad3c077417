#include "tools/namespaces/background_traffic.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <new>
#include <utility>
#include <vector>

#include "tools/namespaces/network_namespace.h"
#include "tools/system/capabilities.h"
#include "transport/clock.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

constexpr std::uint32_t kMaxFlows = 256;
constexpr timeval kPatience{5, 0};  // per connect and accept

/// One process's ends of all flows. Rank 0 connects flow i, and rank i mod 2 sends on it.
using Ends = std::vector<FileDescriptor>;

Result<FileDescriptor> tcp_socket() {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_system(errno, "cannot make a socket for background traffic");
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  return fd;
}

/// Listens on any port of `address`, and puts the port into it.
Result<FileDescriptor> listen_on(sockaddr_in& address, std::uint32_t flows) {
  auto fd = tcp_socket();
  if (!fd) return fd;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (::bind(fd->get(), generic, length) != 0 ||
      ::listen(fd->get(), static_cast<int>(flows)) != 0 ||
      ::getsockname(fd->get(), generic, &length) != 0) {
    return fail_system(errno, "background traffic cannot listen");
  }
  return fd;
}

Result<void> connect_all(const sockaddr_in& address, std::uint32_t flows, Ends& ends) {
  for (std::uint32_t i = 0; i < flows; ++i) {
    auto fd = tcp_socket();
    if (!fd) return fail(fd.error());
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    if (::connect(fd->get(), generic, sizeof address) != 0) {
      return fail_system(errno, "background traffic cannot connect");
    }
    ends.push_back(std::move(*fd));
  }
  return {};
}

/// Accepts the flows in any order; a flow's own first byte says its number.
Result<void> accept_all(int listener, std::uint32_t flows, Ends& ends) {
  ends.resize(flows);
  for (std::uint32_t i = 0; i < flows; ++i) {
    FileDescriptor fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return fail_system(errno, "background traffic: a flow did not connect");
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    std::uint8_t number = 0;
    if (::recv(fd.get(), &number, 1, MSG_WAITALL) != 1 || number >= flows) {
      return fail_system(errno, "background traffic: a flow did not start");
    }
    ends[number] = std::move(fd);
  }
  return {};
}

/// Sends on every second flow and empties the others, until killed or one of them ends.
[[noreturn]] void pump(const Ends& ends, std::size_t first_sent, pid_t parent,
                       std::atomic<std::uint64_t>& received) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  if (!keep_capabilities({})) ::_exit(1);
  static char buffer[64 << 10];
  std::vector<pollfd> ready;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    ready.push_back({ends[i].get(), static_cast<short>(i % 2 == first_sent ? POLLOUT : POLLIN), 0});
  }
  for (;;) {
    if (::poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) ::_exit(1);
    for (const pollfd& each : ready) {
      if (each.revents == 0) continue;
      const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
      const ssize_t moved = each.events == POLLOUT ? ::send(each.fd, buffer, sizeof buffer, flags)
                                                   : ::recv(each.fd, buffer, sizeof buffer, flags);
      if (moved > 0 && each.events == POLLIN) received += static_cast<std::uint64_t>(moved);
      if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) ::_exit(1);
    }
  }
}

/// Connected flows between rank 0 (first) and rank 1 (second).
Result<std::pair<Ends, Ends>> connect_flows(const Testbed& testbed, std::uint32_t flows) {
  std::pair<Ends, Ends> ends;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, testbed.address(1).c_str(), &address.sin_addr);
  FileDescriptor listener;
  auto done = in_network_namespace(testbed.network_namespace(1), [&]() -> Result<void> {
    auto fd = listen_on(address, flows);
    if (!fd) return fail(fd.error());
    listener = std::move(*fd);
    return {};
  });
  if (!done) return fail(done.error());
  done = in_network_namespace(testbed.network_namespace(0),
                              [&] { return connect_all(address, flows, ends.first); });
  if (!done) return fail(done.error());
  for (std::uint32_t i = 0; i < flows; ++i) {
    const auto number = static_cast<std::uint8_t>(i);
    if (::send(ends.first[i].get(), &number, 1, MSG_NOSIGNAL) != 1) {
      return fail_system(errno, "background traffic: a flow cannot start");
    }
  }
  done = accept_all(listener.get(), flows, ends.second);
  if (!done) return fail(done.error());
  return ends;
}

void end_process(int& process) {
  if (process <= 0) return;
  ::kill(process, SIGKILL);
  while (::waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
  }
  process = -1;
}

}  // namespace

Result<BackgroundTraffic> BackgroundTraffic::start(const Testbed& testbed, std::uint32_t flows) {
  if (testbed.ranks() < 2 || flows < 1 || flows > kMaxFlows) {
    return fail(
        Error::Code::invalid_argument,
        fmt::format("background traffic of {} flows among {} ranks: it needs 1 to {} flows and "
                    "2 ranks",
                    flows, testbed.ranks(), kMaxFlows));
  }
  auto ends = connect_flows(testbed, flows);
  if (!ends) return fail(ends.error());
  void* const shared =
      ::mmap(nullptr, sizeof(Received), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return fail_system(errno, "memory for the background traffic");
  BackgroundTraffic traffic(new (shared) Received(0), monotonic_now());
  const pid_t parent = ::getpid();
  for (std::size_t side = 0; side < 2; ++side) {
    const pid_t child = ::fork();
    if (child < 0) return fail_system(errno, "cannot start background traffic");
    if (child == 0) {
      Ends& mine = side == 0 ? ends->first : ends->second;
      (side == 0 ? ends->second : ends->first).clear();
      pump(mine, side, parent, *traffic.received_);
    }
    traffic.processes_[side] = child;
  }
  return traffic;
}

Result<double> BackgroundTraffic::rate() const {
  for (const int process : processes_) {
    siginfo_t ended{};
    // WNOWAIT: the process stays a zombie, so that the destructor kills no other process of its
    // number.
    const int options = WEXITED | WNOHANG | WNOWAIT;
    if (::waitid(P_PID, static_cast<id_t>(process), &ended, options) == 0 && ended.si_pid == 0) {
      continue;
    }
    return fail(Error::Code::unavailable,
                "the background traffic ended before the job did: repeat the run");
  }
  const double seconds = std::chrono::duration<double>(monotonic_now() - started_).count();
  return static_cast<double>(received_->load()) * 8 / seconds;
}

BackgroundTraffic::BackgroundTraffic(BackgroundTraffic&& other) noexcept
    : processes_(std::exchange(other.processes_, {-1, -1})),
      received_(std::exchange(other.received_, nullptr)),
      started_(other.started_) {}

BackgroundTraffic& BackgroundTraffic::operator=(BackgroundTraffic&& other) noexcept {
  std::swap(processes_, other.processes_);
  std::swap(received_, other.received_);
  std::swap(started_, other.started_);
  return *this;
}

BackgroundTraffic::~BackgroundTraffic() {
  for (int& process : processes_) end_process(process);
  if (received_ != nullptr) ::munmap(received_, sizeof *received_);
}

}  // namespace tarpon
