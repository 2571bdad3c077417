#include "xdp/helper_messages.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "xdp/base/printable.h"

namespace tarpon::xdp {
namespace {

template <typename Message>
ReceivedMessage<Message> receive_message(int socket) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  ReceivedMessage<Message> received;
  iovec part{.iov_base = &received.message, .iov_len = sizeof received.message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  // Room for one descriptor: the kernel closes further ones. CMSG_SPACE() has room for two.
  header.msg_controllen = CMSG_LEN(sizeof(int));
  const ssize_t got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return received;
  received.state = MessageState::ended;
  if (got <= 0) return received;
  const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
      rights->cmsg_len == CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
    received.descriptor = FileDescriptor(descriptor);
  }
  const bool good =
      got == sizeof received.message && (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
      received.message.magic == kHelperMagic && received.message.version == kHelperVersion;
  received.state = good ? MessageState::whole : MessageState::malformed;
  return received;
}

int send_message(int socket, const void* data, std::size_t bytes, int descriptor) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  iovec part{.iov_base = const_cast<void*>(data), .iov_len = bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  const ssize_t sent = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes) ? 0 : errno;
}

}  // namespace

ReceivedMessage<HelperRequest> receive_request(int socket) {
  return receive_message<HelperRequest>(socket);
}

ReceivedMessage<HelperReply> receive_reply(int socket) {
  return receive_message<HelperReply>(socket);
}

int send_request(int socket, const HelperRequest& request, int descriptor) {
  return send_message(socket, &request, sizeof request, descriptor);
}

int send_reply(int socket, const HelperReply& reply, int descriptor) {
  return send_message(socket, &reply, sizeof reply, descriptor);
}

HelperReply refusal(const std::string& why) {
  HelperReply reply;
  reply.refused = 1;
  why.copy(reply.text.data(), reply.text.size() - 1);
  return reply;
}

std::string reason_of(const HelperReply& reply) {
  const std::string_view text(reply.text.data(), reply.text.size());
  const std::string_view line = text.substr(0, text.find('\0'));
  return printable(line, line.size());
}

std::string helper_path(const std::string& interface) {
  return fmt::format("/run/tarpon/{}.sock", interface);
}

}  // namespace tarpon::xdp
