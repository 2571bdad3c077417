#include "xdp/served_port.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

namespace tarpon::xdp {
namespace {

constexpr auto kAnswerTime = std::chrono::seconds(5);
constexpr int kConnectTries = 50;  // while many ranks connect at once
constexpr auto kConnectPause = std::chrono::milliseconds(10);

Error unavailable(const std::string& why) {
  return Error::make(Error::Code::unavailable, "tarpon xdp serve " + why);
}

Result<FileDescriptor> connect_to(const std::string& interface) {
  const std::string path = helper_path(interface);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail_system(errno, "UNIX socket");
  for (int i = 0;; ++i) {
    const auto* const to = reinterpret_cast<const sockaddr*>(&address);
    if (::connect(socket.get(), to, sizeof address) == 0) return socket;
    if (errno == EAGAIN && i < kConnectTries) {
      std::this_thread::sleep_for(kConnectPause);
      continue;
    }
    if (errno == EACCES) {
      return fail(
          Error::Code::permission,
          fmt::format("tarpon xdp serve does not admit this user at {}: its --group does", path));
    }
    return fail(unavailable(fmt::format("does not run ({})", path)));
  }
}

struct Answer {
  HelperReply reply;
  FileDescriptor descriptor;
};

/// `descriptor`: to send along; -1: none. `carries`: the answer has one, unless it has an error.
Result<Answer> ask(int helper, const HelperRequest& request, int descriptor, bool carries) {
  // A helper that refuses may have closed the connection: its reason is still to be read.
  (void)send_request(helper, request, descriptor);
  const auto until = std::chrono::steady_clock::now() + kAnswerTime;
  while (true) {
    auto received = receive_reply(helper);
    switch (received.state) {
      case MessageState::whole:
        if (received.message.refused != 0) {
          return fail(unavailable("refuses: " + reason_of(received.message)));
        }
        if (carries && received.message.error == 0 && !received.descriptor) {
          return fail(unavailable("has not sent its descriptor"));
        }
        return Answer{received.message, std::move(received.descriptor)};
      case MessageState::ended:
        return fail(unavailable("has ended"));
      case MessageState::malformed:
        return fail(unavailable("is of another version of Tarpon: restart it"));
      case MessageState::none:
        break;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return fail(unavailable(fmt::format("has not answered within {} s", kAnswerTime.count())));
    }
    pollfd entry{helper, POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(left.count()));
  }
}

}  // namespace

bool helper_is_there(const std::string& interface) {
  struct stat there {};
  return ::stat(helper_path(interface).c_str(), &there) == 0;
}

Result<ServedMode> look_for_helper(const std::string& interface) {
  const auto helper = connect_to(interface);
  if (!helper) return fail(helper.error());
  const FileDescriptor own(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!own) return fail_system(errno, "UDP socket");
  const auto answer = ask(helper->get(), {.step = HelperStep::look}, own.get(), false);
  if (!answer) return fail(answer.error());
  return ServedMode{.copies = answer->reply.copies != 0};
}

Result<std::unique_ptr<ServedPort>> ServedPort::claim(const std::string& interface, int port_socket,
                                                      std::uint32_t job) {
  auto helper = connect_to(interface);
  if (!helper) return fail(helper.error());
  const HelperRequest request{.step = HelperStep::claim, .job = job};
  const auto answer = ask(helper->get(), request, port_socket, false);
  if (!answer) return fail(answer.error());
  return std::unique_ptr<ServedPort>(new ServedPort(std::move(*helper)));
}

Result<FileDescriptor> ServedPort::make(std::uint32_t queue, bool busy_poll) {
  const HelperRequest request{.step = HelperStep::socket,
                              .queue = queue,
                              .busy_poll = static_cast<std::uint16_t>(busy_poll ? 1 : 0)};
  auto answer = ask(connection_.get(), request, -1, true);
  if (!answer) return fail(answer.error());
  if (answer->reply.error == 0) return std::move(answer->descriptor);
  return fail(Error::Code::unavailable,
              fmt::format("queue {}: another rank of tarpon xdp serve has it", queue));
}

int ServedPort::bind(std::uint32_t queue, std::uint16_t flags) {
  const HelperRequest request{.step = HelperStep::bind, .queue = queue, .flags = flags};
  const auto answer = ask(connection_.get(), request, -1, false);
  return answer ? answer->reply.error : ECONNRESET;
}

Result<PortWindows> ServedPort::open_port(const tarpon_port_key&, const tarpon_port_entry&) {
  auto answer = ask(connection_.get(), {.step = HelperStep::open}, -1, true);
  if (!answer) return fail(answer.error());
  return PortWindows::map(std::move(answer->descriptor));
}

Result<void> ServedPort::open_group(const tarpon_port_key&, const tarpon_port_entry&) {
  return fail(Error::Code::unavailable, "tarpon xdp serve opens no groups");
}

}  // namespace tarpon::xdp
