// What a rank and `tarpon xdp serve` say to each other: over a SEQPACKET UNIX socket, one reply to
// each request. Both have a fixed size, and may carry one descriptor.
//
// A refused request ends the connection. No call here blocks. One thread at a time for a socket.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "xdp/base/file_descriptor.h"

namespace tarpon::xdp {

inline constexpr std::uint32_t kHelperMagic = 0x58505254;  // "TRPX"
inline constexpr std::uint16_t kHelperVersion = 1;

/// In the order of a rank: look, and on another connection the others. A rank that has several
/// queues repeats socket and bind; open is repeated when the interface has another MAC.
enum class HelperStep : std::uint16_t {
  look = 1,    // carries a socket of the rank's network namespace: does the helper serve that?
  claim = 2,   // carries the UDP socket that is bound to the port of the rank
  socket = 3,  // the reply carries an AF_XDP socket for `queue`
  bind = 4,    // its memory and rings are registered: the helper binds it to the queue
  open = 5,    // packets come from now on; the reply carries the operation windows of the port
};

struct HelperRequest {
  std::uint32_t magic = kHelperMagic;
  std::uint16_t version = kHelperVersion;
  HelperStep step{};
  std::uint32_t job = 0;        // claim: cookie
  std::uint32_t queue = 0;      // socket, bind
  std::uint16_t flags = 0;      // bind: XDP_USE_NEED_WAKEUP, XDP_COPY, ...
  std::uint16_t busy_poll = 0;  // socket: 1: for SO_PREFER_BUSY_POLL
};
static_assert(sizeof(HelperRequest) == 20);

struct HelperReply {
  std::uint32_t magic = kHelperMagic;
  std::uint16_t version = kHelperVersion;
  std::uint16_t refused = 0;        // 1: `text` says why
  std::int32_t error = 0;           // socket, bind: an errno
  std::uint32_t copies = 0;         // look: 1: the program is attached in skb mode
  std::array<char, 240> text = {};  // one line, ends with 0
};
static_assert(sizeof(HelperReply) == 256);

enum class MessageState : std::uint8_t {
  whole,
  none,       // nothing has come yet
  ended,      // the other end has closed the connection
  malformed,  // another size, magic or version; more than one descriptor
};

template <typename Message>
struct ReceivedMessage {
  MessageState state = MessageState::none;
  Message message{};
  FileDescriptor descriptor;  // may be empty
};

/// Reads one message if there is one.
ReceivedMessage<HelperRequest> receive_request(int socket);
ReceivedMessage<HelperReply> receive_reply(int socket);

/// Returns 0 or an errno. `descriptor`: to send along; -1: none.
int send_request(int socket, const HelperRequest& request, int descriptor = -1);
int send_reply(int socket, const HelperReply& reply, int descriptor = -1);

/// A reply that refuses: `why`, cut where it is too long.
HelperReply refusal(const std::string& why);

/// The reason in a reply that refuses; no control characters.
std::string reason_of(const HelperReply& reply);

/// What a helper serves.
struct ServedMode {
  bool copies = false;  // the program is attached in skb mode
};

/// Where the helper of `interface` (a name) listens by default: /run/tarpon/INTERFACE.sock
std::string helper_path(const std::string& interface);

}  // namespace tarpon::xdp
