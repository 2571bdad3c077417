// glibc's <netinet/in.h> does not go after the kernel's <linux/in.h>.
#include <netinet/in.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "xdp/attached.h"
#include "xdp/helper_client.h"
#include "xdp/kernel.h"
#include "xdp/neighbours.h"
#include "xdp/socket.h"

namespace tarpon::xdp {
namespace {

constexpr std::uint16_t kBindFlags = XDP_USE_NEED_WAKEUP | XDP_COPY | XDP_ZEROCOPY | kUseSg;

tl::unexpected<Error> refused(std::string why) {
  return fail(Error::Code::invalid_argument, std::move(why));
}

bool same(const tarpon_port_key& a, const tarpon_port_key& b) {
  return tarpon_port_word(&a) == tarpon_port_word(&b);
}

}  // namespace

HelperClient::HelperClient(FileDescriptor connection, uid_t user, ServedInterface& served)
    : connection_(std::move(connection)),
      user_(user),
      served_(served),
      deadline_(Clock::now() + kStepTime) {}

HelperClient::~HelperClient() {
  ProgramMaps& maps = served_.program.maps();
  if (open_ && !abandoned_) (void)maps.close_port(port_);
  for (const Held& one : held_) {
    if (!one.bound) continue;
    if (!abandoned_) (void)maps.remove_socket(one.queue);
    served_.queues &= ~(std::uint64_t{1} << one.queue);
  }
  if (port_socket_) {
    std::erase_if(served_.ports, [this](const auto& port) { return same(port, port_); });
  }
}

bool HelperClient::answer() {
  ReceivedMessage<HelperRequest> received = receive_request(fd());
  switch (received.state) {
    case MessageState::none:
      return true;
    case MessageState::ended:
      return false;
    case MessageState::malformed:
      refuse("this is not a request of this version of Tarpon");
      return false;
    case MessageState::whole:
      break;
  }
  if (++requests_ > kMostRequests) {
    refuse(fmt::format("more than {} requests", kMostRequests));
    return false;
  }
  const auto answer = take(received.message, std::move(received.descriptor));
  if (!answer) {
    refuse(answer.error().message);
    return false;
  }
  deadline_ = Clock::now() + kStepTime;
  const int descriptor = answer->descriptor ? answer->descriptor.get() : -1;
  return send_reply(fd(), answer->reply, descriptor) == 0;
}

void HelperClient::refuse(const std::string& why) {
  // A rank that does not read it loses the reason alone.
  (void)send_reply(fd(), refusal(why));
}

Result<HelperClient::Answer> HelperClient::take(const HelperRequest& request,
                                                FileDescriptor descriptor) {
  if (!served_.program.attached()) {
    return refused(fmt::format("the XDP program is no longer on {}: restart tarpon xdp serve",
                               interface_text(served_.place.interface)));
  }
  const bool carries = request.step == HelperStep::look || request.step == HelperStep::claim;
  if (carries != static_cast<bool>(descriptor)) {
    return refused(carries ? "the request lacks its descriptor"
                           : "the request carries a descriptor that it does not need");
  }
  if (!carries && !port_socket_) return refused("no port is claimed");
  switch (request.step) {
    case HelperStep::look:
      return look(descriptor.get());
    case HelperStep::claim:
      return claim(request, std::move(descriptor));
    case HelperStep::socket:
      return make_socket(request);
    case HelperStep::bind:
      return bind_socket(request);
    case HelperStep::open:
      return open_port();
  }
  return refused("an unknown request");
}

Result<HelperClient::Answer> HelperClient::look(int socket) const {
  if (network_of(socket) != served_.place.network) {
    return refused("it serves another network namespace");
  }
  Answer answer;
  answer.reply.copies = served_.copies ? 1 : 0;
  return answer;
}

Result<HelperClient::Answer> HelperClient::claim(const HelperRequest& request,
                                                 FileDescriptor socket) {
  if (port_socket_) return refused("a port is claimed already");
  const auto port = prove_port(socket.get(), user_, served_.place);
  if (!port) return fail(port.error());
  if (std::any_of(served_.ports.begin(), served_.ports.end(),
                  [&port](const auto& other) { return same(other, *port); })) {
    return refused("another client has the port");
  }
  port_ = *port;
  job_ = request.job;
  port_socket_ = std::move(socket);
  served_.ports.push_back(port_);
  return Answer{};
}

void HelperClient::drop_unbound() {
  std::erase_if(held_, [](const Held& one) { return !one.bound; });
}

Result<HelperClient::Answer> HelperClient::make_socket(const HelperRequest& request) {
  if (open_) return refused("the port is open already");
  if (request.queue >= TARPON_MAX_QUEUES) {
    return refused(fmt::format("queue {}: at most {}", request.queue, TARPON_MAX_QUEUES - 1));
  }
  drop_unbound();  // its memory stays locked while it is open
  Answer answer;
  if ((served_.queues >> request.queue & 1) != 0) {
    answer.reply.error = EBUSY;
    return answer;
  }
  auto socket = open_socket(request.busy_poll != 0);
  if (!socket) return fail(socket.error());
  // Nothing but the helper can unbind it from the interface: the rank lacks CAP_NET_RAW.
  const std::string name = interface_text(served_.place.interface);
  if (::setsockopt(socket->get(), SOL_SOCKET, SO_BINDTODEVICE, name.c_str(),
                   static_cast<socklen_t>(name.size())) != 0) {
    return fail_system(errno, "binding an AF_XDP socket to " + name);
  }
  answer.descriptor = FileDescriptor(::fcntl(socket->get(), F_DUPFD_CLOEXEC, 0));
  if (!answer.descriptor) return fail_system(errno, "a second descriptor of an AF_XDP socket");
  held_.push_back({.queue = request.queue, .socket = std::move(*socket)});
  return answer;
}

/// The helper binds it, not the rank: this proves that the socket is on the queue that the helper
/// will enter it for. A socket that the rank has bound elsewhere cannot be bound again.
Result<HelperClient::Answer> HelperClient::bind_socket(const HelperRequest& request) {
  if (held_.empty() || held_.back().bound || held_.back().queue != request.queue) {
    return refused(fmt::format("no socket for queue {} waits to be bound", request.queue));
  }
  if ((request.flags & ~kBindFlags) != 0) {
    return refused(fmt::format("flags {:#x}: only {:#x} are allowed", request.flags, kBindFlags));
  }
  Answer answer;
  answer.reply.error = xdp::bind_socket(held_.back().socket.get(), served_.place.interface,
                                        request.queue, request.flags);
  if (answer.reply.error == 0) {
    held_.back().bound = true;
    served_.queues |= std::uint64_t{1} << request.queue;
  } else if (answer.reply.error != EBUSY) {
    drop_unbound();
  }
  return answer;
}

Result<HelperClient::Answer> HelperClient::open_port() {
  drop_unbound();
  if (held_.empty()) return refused("no socket is bound");
  auto neighbours = Neighbours::open(served_.place.interface);
  if (!neighbours) return fail(neighbours.error());
  const auto link = neighbours->link();
  if (!link) return fail(link.error());
  ProgramMaps& maps = served_.program.maps();
  tarpon_port_entry entry{};
  entry.job = job_;
  entry.index = held_.front().queue;
  std::copy(link->mac.begin(), link->mac.end(), entry.mac);
  for (const Held& one : held_) {
    entry.queues |= std::uint64_t{1} << one.queue;
    if (open_) continue;
    if (auto inserted = maps.insert_socket(one.queue, one.socket.get()); !inserted) {
      return fail(inserted.error());
    }
  }
  const auto windows = maps.open_port(port_, entry);
  if (!windows) return fail(windows.error());
  open_ = true;
  Answer answer;
  answer.descriptor = FileDescriptor(::fcntl(windows->fd(), F_DUPFD_CLOEXEC, 0));
  if (!answer.descriptor) return fail_system(errno, "a second descriptor of operation windows");
  return answer;
}

}  // namespace tarpon::xdp
