#include "collectives/flight/status_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace tarpon {
namespace {

constexpr int kRequestPatience = 200;  // ms
constexpr timeval kReplyPatience{.tv_sec = 1, .tv_usec = 0};

bool may_ask(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == 0 || peer.uid == ::geteuid();
}

std::string read_request(int fd) {
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, kRequestPatience) <= 0) return {};
  std::array<char, 64> text{};
  const ssize_t got = ::recv(fd, text.data(), text.size(), MSG_DONTWAIT);
  if (got <= 0) return {};
  const std::string request(text.data(), static_cast<std::size_t>(got));
  return request.substr(0, request.find('\n'));
}

bool send_all(int fd, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

}  // namespace

FileDescriptor listen_abstract(const std::string& name) {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!fd || name.size() + 1 > sizeof address.sun_path) return {};
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  constexpr int kBacklog = 8;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return {};
  if (::listen(fd.get(), kBacklog) != 0) return {};
  return fd;
}

void serve_client(const FileDescriptor& listener,
                  const std::function<void(const std::string& request, const Reply&)>& answer) {
  const FileDescriptor client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!client || !may_ask(client.get())) return;
  ::setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &kReplyPatience, sizeof kReplyPatience);
  answer(read_request(client.get()), [&client](const void* data, std::size_t bytes) {
    return send_all(client.get(), data, bytes);
  });
}

}  // namespace tarpon
