#include "collectives/rendezvous/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "transport/clock.h"

namespace tarpon::rendezvous {
namespace {

using std::chrono::milliseconds;

bool is_known(std::uint32_t kind) {
  return kind >= static_cast<std::uint32_t>(FrameKind::hello) &&
         kind <= static_cast<std::uint32_t>(FrameKind::failure);
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

}  // namespace

std::uint32_t wait_ms(Time deadline) {
  if (deadline == kNever) return UINT32_MAX;
  const Time now = monotonic_now();
  const auto left = std::chrono::floor<milliseconds>(deadline - std::min(now, deadline)).count();
  return static_cast<std::uint32_t>(std::min<std::int64_t>(left, UINT32_MAX));
}

Duration answer_within(Duration wait) {
  return wait - std::min<Duration>(wait / 4, 1s);
}

Time answer_by(std::uint32_t wait_ms) {
  if (wait_ms == UINT32_MAX) return kNever;
  return monotonic_now() + answer_within(milliseconds(wait_ms));
}

Connection::Connection(SecureSocket socket, std::uint32_t largest_body)
    : socket_(std::move(socket)), state_(State::open), largest_body_(largest_body) {}

void Connection::close() {
  socket_.reset();
  if (state_ == State::open) state_ = State::closed;
}

void Connection::receive() {
  if (!is_open() || whole_) return;
  if (header_filled_ < kFrameHeaderBytes) {
    const bool whole = read_into(header_.data(), kFrameHeaderBytes, header_filled_);
    // A banner such as "SSH-2.0" may be shorter than a header, and no more may come.
    if (!check_length() || !whole) return;
    parse_header();
    if (!is_open()) return;
  }
  whole_ = read_into(incoming_.body.data(), incoming_.body.size(), body_filled_);
}

// Whether all `wanted` bytes are there.
bool Connection::read_into(char* bytes, std::size_t wanted, std::size_t& filled) {
  while (filled < wanted) {
    const ssize_t got = socket_.read(bytes + filled, wanted - filled);
    if (got > 0) {
      filled += static_cast<std::size_t>(got);
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else {
      if (got == 0) {
        close();
      } else if (!would_block()) {
        end_by_error();
      }
      return false;
    }
  }
  return true;
}

/// Ends the connection if it announces a body that no frame has. Returns whether it does not.
bool Connection::check_length() {
  if (header_filled_ < 4 || read_u32(header_.data()) <= largest_body_) return true;
  state_ = State::malformed;
  return false;
}

void Connection::end_by_error() {
  if (socket_.trouble() == SecureSocket::Trouble::none) return close();
  if (state_ == State::open) state_ = State::untrusted;
}

void Connection::parse_header() {
  const std::uint32_t length = read_u32(header_.data());
  const std::uint32_t kind = read_u32(header_.data() + 4);
  if (!is_known(kind)) {
    state_ = State::malformed;
    return;
  }
  incoming_.kind = static_cast<FrameKind>(kind);
  incoming_.sequence = read_u32(header_.data() + 8);
  incoming_.wait_ms = read_u32(header_.data() + 12);
  incoming_.body.resize(length);
}

Frame Connection::take() {
  assert(whole_);
  whole_ = false;
  header_filled_ = 0;
  body_filled_ = 0;
  return std::exchange(incoming_, Frame{});
}

void Connection::send(std::shared_ptr<const std::string> bytes) {
  assert(!sending());
  if (!is_open()) return;
  outgoing_ = std::move(bytes);
  sent_ = 0;
  flush();
}

void Connection::flush() {
  while (sending()) {
    const ssize_t sent = socket_.write(outgoing_->data() + sent_, outgoing_->size() - sent_);
    if (sent > 0) {
      sent_ += static_cast<std::size_t>(sent);
      if (sent_ == outgoing_->size()) outgoing_.reset();
    } else if (sent == 0) {
      return close();
    } else if (errno != EINTR) {
      if (!would_block()) end_by_error();
      return;
    }
  }
}

}  // namespace tarpon::rendezvous
