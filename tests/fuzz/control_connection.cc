// The bytes of a process that connects to the rendezvous, before and after it has proved anything.
// Input: 1: the server expects TLS (1 byte); then pieces as they arrive, each after its length (1
// byte).
#include <sys/socket.h>

#include <array>

#include "collectives/rendezvous/connection.h"
#include "tests/fuzz/fuzz.h"

using namespace tarpon;
using fuzz::require;

namespace {

constexpr std::uint32_t kLargest = 512;

/// Made once: OpenSSL takes longer than the connection.
const std::shared_ptr<const TlsContext>& context() {
  static const std::shared_ptr<const TlsContext> made = [] {
    std::array<std::byte, JobSecret::kMinBytes> bytes{};
    bytes.fill(std::byte{7});
    const JobSecret secret{std::span<const std::byte>(bytes)};
    auto made = TlsContext::make(&secret);
    require(made.has_value(), "a context of TLS can be made");
    return *std::move(made);
  }();
  return made;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const bool secure = input.byte() == 1;
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0,
          "socketpair works");
  FileDescriptor stranger(ends[0]);
  rendezvous::Connection connection(
      SecureSocket(FileDescriptor(ends[1]), secure ? context() : nullptr,
                   SecureSocket::End::server),
      kLargest);
  std::size_t sent = 0, taken = 0;
  while (!input.empty() && connection.is_open()) {
    const auto piece = input.bytes(input.byte() + std::size_t{1});
    const ssize_t written = ::send(stranger.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    if (written > 0) sent += static_cast<std::size_t>(written);
    // As often as there may be frames in the piece, and once more.
    for (std::size_t i = 0; i < piece.size() / rendezvous::kFrameHeaderBytes + 2; ++i) {
      connection.receive();
      if (connection.frame() == nullptr) continue;
      require(!secure, "no frame comes without a proof");
      const rendezvous::Frame frame = connection.take();
      require(frame.body.size() <= kLargest, "a body keeps its limit");
      require(frame.kind >= rendezvous::FrameKind::hello &&
                  frame.kind <= rendezvous::FrameKind::failure,
              "the kind is a known one");
      taken += rendezvous::kFrameHeaderBytes + frame.body.size();
      require(taken <= sent, "a frame has the bytes that came");
    }
  }
  require(connection.beginning().size() <= rendezvous::kFrameHeaderBytes, "a beginning is short");
  if (connection.is_open()) return 0;
  require(connection.state() != rendezvous::Connection::State::untrusted || secure,
          "plain connections trust");
  return 0;
}
