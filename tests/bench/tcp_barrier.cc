#include "tests/bench/tcp_barrier.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace tarpon::bench {
namespace {

constexpr std::chrono::seconds kPatience(30);

/// What recv and accept fail with at SO_RCVTIMEO is EAGAIN.
[[noreturn]] void fail_waiting(const char* what) {
  if (errno == EAGAIN) throw std::runtime_error("a rank is silent or missing");
  fail_system(what);
}

FileDescriptor configured(int fd) {
  FileDescriptor result(fd);
  const int on = 1;
  const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0) {
    fail_system("options of a TCP socket");
  }
  return result;
}

FileDescriptor make_socket() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail_system("TCP socket");
  return configured(fd);
}

const sockaddr* generic(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

void send_all(const FileDescriptor& to, const void* data, std::size_t bytes) {
  const ssize_t sent = ::send(to.get(), data, bytes, MSG_NOSIGNAL);
  if (sent < 0) fail_system("sending to a rank");
  if (static_cast<std::size_t>(sent) != bytes) throw std::runtime_error("a message was cut");
}

void receive_all(const FileDescriptor& from, void* data, std::size_t bytes) {
  const ssize_t received = ::recv(from.get(), data, bytes, MSG_WAITALL);
  if (received < 0) fail_waiting("waiting for a rank");
  if (static_cast<std::size_t>(received) != bytes) throw std::runtime_error("a rank has left");
}

}  // namespace

TcpBarrier::TcpBarrier(int rank, int world, const sockaddr_in& root)
    : rank_(rank), connections_(static_cast<std::size_t>(world)) {
  if (rank == 0) {
    listen(root);
  } else {
    connect(root);
  }
}

void TcpBarrier::listen(const sockaddr_in& root) {
  FileDescriptor listener = make_socket();
  if (::bind(listener.get(), generic(root), sizeof root) != 0) fail_system("bind");
  if (::listen(listener.get(), SOMAXCONN) != 0) fail_system("listen");
  for (std::size_t i = 1; i < connections_.size(); ++i) {
    const int fd = ::accept(listener.get(), nullptr, nullptr);
    if (fd < 0) fail_waiting("accept");
    FileDescriptor peer = configured(fd);
    int rank = 0;
    receive_all(peer, &rank, sizeof rank);
    connections_.at(static_cast<std::size_t>(rank)) = std::move(peer);
  }
  connections_[0] = std::move(listener);
}

void TcpBarrier::connect(const sockaddr_in& root) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    connections_[0] = make_socket();
    if (::connect(connections_[0].get(), generic(root), sizeof root) == 0) break;
    if (std::chrono::steady_clock::now() > limit) fail_system("connect to rank 0");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  send_all(connections_[0], &rank_, sizeof rank_);
}

sockaddr_in TcpBarrier::local() const {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(connections_[0].get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    fail_system("getsockname");
  }
  return address;
}

bool TcpBarrier::any(bool mine) {
  const auto all = gather(static_cast<char>(mine));
  return std::find(all.begin(), all.end(), 1) != all.end();
}

void TcpBarrier::gather_bytes(const void* mine, std::size_t bytes, void* all) {
  const std::size_t total = bytes * connections_.size();
  if (rank_ != 0) {
    send_all(connections_[0], mine, bytes);
    receive_all(connections_[0], all, total);
    return;
  }
  std::memcpy(all, mine, bytes);
  for (std::size_t i = 1; i < connections_.size(); ++i) {
    receive_all(connections_[i], static_cast<char*>(all) + i * bytes, bytes);
  }
  for (std::size_t i = 1; i < connections_.size(); ++i) send_all(connections_[i], all, total);
}

void fail_system(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace tarpon::bench
