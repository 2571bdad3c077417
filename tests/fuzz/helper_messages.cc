// What a stranger says to `tarpon xdp serve`, and a false helper to a rank.
// Input: whether a reply (1 byte), descriptors beside (1), message.
#include "xdp/helper_messages.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "tests/fuzz/fuzz.h"

namespace {

using namespace tarpon;
using fuzz::require;
using xdp::MessageState;

constexpr std::size_t kMostDescriptors = 3;

bool send_bytes(int to, std::span<const std::uint8_t> bytes, std::size_t descriptors) {
  std::array<int, kMostDescriptors> beside{};
  beside.fill(to);
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof beside)> control{};
  iovec part{.iov_base = const_cast<std::uint8_t*>(bytes.data()), .iov_len = bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptors > 0) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    std::memcpy(CMSG_DATA(rights), beside.data(), descriptors * sizeof(int));
  }
  return ::sendmsg(to, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

template <typename Message>
void check(const xdp::ReceivedMessage<Message>& received, std::size_t bytes,
           std::size_t descriptors) {
  require(received.state == MessageState::whole || received.state == MessageState::malformed,
          "a message that came is whole or malformed");
  require(!received.descriptor || descriptors > 0, "a descriptor was sent");
  if (received.state != MessageState::whole) return;
  require(bytes == sizeof(Message) && descriptors <= 1, "a whole message has its size");
  require(received.message.magic == xdp::kHelperMagic &&
              received.message.version == xdp::kHelperVersion,
          "a whole message is of this version");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const bool is_reply = (input.byte() & 1) != 0;
  const std::size_t descriptors = input.byte() % (kMostDescriptors + 1);
  const auto message = input.bytes(4096);
  int ends[2];
  if (message.empty() || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return 0;
  }
  const FileDescriptor from(ends[0]);
  const FileDescriptor to(ends[1]);
  require(send_bytes(from.get(), message, descriptors), "the socket takes a message");
  if (!is_reply) {
    check(xdp::receive_request(to.get()), message.size(), descriptors);
    return 0;
  }
  const auto reply = xdp::receive_reply(to.get());
  check(reply, message.size(), descriptors);
  for (const char c : xdp::reason_of(reply.message)) {
    require(c >= ' ' && c <= '~', "a reason can be printed");
  }
  return 0;
}
