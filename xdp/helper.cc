#include "xdp/helper.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "xdp/attached.h"

namespace tarpon::xdp {
namespace {

constexpr int kBacklog = 64;
constexpr auto kLookEvery = std::chrono::seconds(1);  // at the program
constexpr int kMostWelcomes = 16;                     // in a row

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return fail(Error::Code::invalid_argument,
                fmt::format("--socket {}: a path of 1 to {} bytes is needed", path,
                            sizeof address.sun_path - 1));
  }
  path.copy(address.sun_path, path.size());
  return address;
}

/// Removes the socket that a dead helper has left.
Result<void> clear_path(const std::string& path, const sockaddr_un& address) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) return {};
  if (!S_ISSOCK(there.st_mode)) {
    return fail(Error::Code::invalid_argument, path + " is there, and is not a socket");
  }
  const FileDescriptor probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(probe.get(), to, sizeof address) == 0 || errno != ECONNREFUSED) {
    return fail(Error::Code::unavailable,
                path + ": another tarpon xdp serve listens there: end it first");
  }
  if (::unlink(path.c_str()) != 0) return fail_system(errno, "removing " + path);
  return {};
}

Result<FileDescriptor> listen_at(const std::string& path, std::optional<gid_t> group) {
  const auto address = address_of(path);
  if (!address) return fail(address.error());
  std::error_code error;
  const auto directory = std::filesystem::path(path).parent_path();
  if (std::filesystem::create_directories(directory, error)) {
    // Whatever the umask is: the socket has a mode of its own.
    std::filesystem::permissions(directory, std::filesystem::perms(0755), error);
  }
  if (error) return fail_system(error.value(), "making the directory of " + path);
  if (auto clear = clear_path(path, *address); !clear) return fail(clear.error());
  FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The mode of the file that bind() makes: nobody connects before the group is set.
  if (!listener || ::fchmod(listener.get(), 0600) != 0) return fail_system(errno, "UNIX socket");
  const auto* const at = reinterpret_cast<const sockaddr*>(&*address);
  if (::bind(listener.get(), at, sizeof *address) != 0) return fail_system(errno, path);
  if ((group && ::lchown(path.c_str(), static_cast<uid_t>(-1), *group) != 0) ||
      ::chmod(path.c_str(), 0660) != 0 || ::listen(listener.get(), kBacklog) != 0) {
    const int failed = errno;
    ::unlink(path.c_str());
    return fail_system(failed, path);
  }
  return listener;
}

}  // namespace

Result<Helper> Helper::listen(const std::string& path, std::optional<gid_t> group) {
  auto listener = listen_at(path, group);
  if (!listener) return fail(listener.error());
  Helper helper;
  helper.path_ = path;
  helper.listener_ = std::move(*listener);
  return helper;
}

Helper::~Helper() {
  if (listener_) ::unlink(path_.c_str());
}

Result<void> Helper::serve(unsigned interface, Program program, bool copies, int stop) {
  using Clock = HelperClient::Clock;
  served_ = std::make_unique<ServedInterface>(
      ServedInterface{.program = std::move(program),
                      .place = {.interface = interface, .network = network_of(listener_.get())},
                      .copies = copies});
  std::vector<pollfd> entries;
  while (served_->program.attached()) {
    entries.assign({{stop, POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    Clock::time_point until = Clock::now() + kLookEvery;
    for (const auto& client : clients_) {
      entries.push_back({client->fd(), POLLIN, 0});
      until = std::min(until, client->deadline());
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    const int wait = static_cast<int>(std::max<std::chrono::milliseconds::rep>(left.count(), 0));
    if (::poll(entries.data(), entries.size(), wait) < 0 && errno != EINTR) {
      return fail_system(errno, "waiting for clients");
    }
    if (entries[0].revents != 0) {
      for (const auto& client : clients_) client->abandon();
      return {};
    }
    for (std::size_t i = 0; i < clients_.size(); ++i) answer(i, entries[i + 2].revents != 0);
    std::erase(clients_, nullptr);
    if (entries[1].revents != 0) welcome();
  }
  return fail(Error::Code::unavailable,
              fmt::format("the XDP program is no longer on {}: restart tarpon xdp serve",
                          interface_text(served_->place.interface)));
}

void Helper::answer(std::size_t at, bool asks) {
  HelperClient& client = *clients_[at];
  if (asks && !client.answer()) {
    clients_[at].reset();
  } else if (client.deadline() <= HelperClient::Clock::now()) {
    client.refuse(fmt::format("no request within {} s", HelperClient::kStepTime.count()));
    clients_[at].reset();
  }
}

void Helper::welcome() {
  for (int i = 0; i < kMostWelcomes; ++i) {
    FileDescriptor connection(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) return;
    ucred peer{};
    socklen_t length = sizeof peer;
    if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) continue;
    auto client = std::make_unique<HelperClient>(std::move(connection), peer.uid, *served_);
    if (clients_.size() == kMostClients) {
      client->refuse(fmt::format("it has {} clients, the most that it serves", kMostClients));
    } else {
      clients_.push_back(std::move(client));
    }
  }
}

}  // namespace tarpon::xdp
