// A TCP connection that carries frames, with TLS or without, driven by polling.
//
// One thread at a time. Nothing blocks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "collectives/rendezvous/control_frame.h"
#include "collectives/rendezvous/sockets.h"
#include "collectives/secret/secure_socket.h"
#include "transport/time.h"

namespace tarpon::rendezvous {

/// Frame::wait_ms for a wait until `deadline`.
std::uint32_t wait_ms(Time deadline);

/// How long rank 0 waits before it answers a rank that waits for `wait`, so that the answer arrives
/// before that rank gives up: `wait` less a quarter of it, but at most less a second.
Duration answer_within(Duration wait);

/// The same as a time, for a wait of `wait_ms` that begins now.
Time answer_by(std::uint32_t wait_ms);

/// Owns its socket. Move-only.
class Connection {
 public:
  enum class State {
    open,
    closed,     // by the peer, by an error, or by close()
    malformed,  // the peer sent a length or a kind that no frame has
    untrusted,  // SecureSocket::trouble() says why
  };

  Connection() = default;  // closed
  explicit Connection(SecureSocket socket, std::uint32_t largest_body = kLargestBody);
  explicit Connection(FileDescriptor socket, std::uint32_t largest_body = kLargestBody)
      : Connection(SecureSocket(std::move(socket), nullptr, SecureSocket::End::client),
                   largest_body) {}

  State state() const { return state_; }
  bool is_open() const { return state_ == State::open; }
  void close();
  SecureSocket::Trouble trouble() const { return socket_.trouble(); }

  /// The first bytes of the frame that is being received, at most kFrameHeaderBytes. They stay
  /// when the connection has ended.
  std::string_view beginning() const { return {header_.data(), header_filled_}; }

  /// From now on bodies may have this many bytes.
  void allow(std::uint32_t largest_body) { largest_body_ = largest_body; }

  /// Reads what has arrived, up to one whole frame.
  void receive();
  /// The whole frame that receive() read, or null.
  const Frame* frame() const { return whole_ ? &incoming_ : nullptr; }
  /// Hands that frame over. REQUIRES: frame() is not null.
  Frame take();

  /// Starts sending `bytes`, one or more encoded frames. REQUIRES: !sending().
  void send(std::shared_ptr<const std::string> bytes);
  void flush();
  bool sending() const { return is_open() && outgoing_ != nullptr; }

  /// Entries for poll(), ready when more can be read, and when more can be sent; never when closed.
  pollfd poll_entry() const { return {is_open() ? socket_.get() : -1, POLLIN, 0}; }
  pollfd poll_entry_for_sending() const { return {is_open() ? socket_.get() : -1, POLLOUT, 0}; }

  /// A malformed or untrusted connection keeps it until its end.
  const FileDescriptor& socket() const { return socket_.descriptor(); }

 private:
  bool read_into(char* bytes, std::size_t wanted, std::size_t& filled);
  void end_by_error();
  bool check_length();
  void parse_header();

  SecureSocket socket_;
  State state_ = State::closed;
  std::uint32_t largest_body_ = 0;

  std::array<char, kFrameHeaderBytes> header_{};
  std::size_t header_filled_ = 0;
  std::size_t body_filled_ = 0;
  bool whole_ = false;
  Frame incoming_;

  std::shared_ptr<const std::string> outgoing_;
  std::size_t sent_ = 0;
};

}  // namespace tarpon::rendezvous
