// Framing over a non-blocking TCP socket.
#include "collectives/mesh/link.h"

#include <sys/socket.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "collectives/rendezvous/connection.h"

namespace tarpon::mesh {
namespace {

using rendezvous::append_u32;
using rendezvous::read_u32;

constexpr std::size_t kHeaderBytes = 8;
constexpr std::size_t kMostUnsent = 1u << 20;

bool is_known(std::uint32_t kind) {
  return kind >= static_cast<std::uint32_t>(FrameKind::goodbye) &&
         kind <= static_cast<std::uint32_t>(FrameKind::epoch_record);
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

}  // namespace

void Link::finish(std::string why) {
  socket_.reset();
  end_ = std::move(why);
}

void Link::read() {
  std::array<char, 4096> piece;
  in_.erase(0, taken_);
  taken_ = 0;
  // Frames are taken between two reads, so that no peer can make this grow.
  while (is_open() && in_.size() < kHeaderBytes + kLargestBody) {
    const ssize_t got = recv(socket_.get(), piece.data(), piece.size(), 0);
    if (got > 0) {
      in_.append(piece.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno == ECONNRESET) {
      finish("control connection reset");
    } else if (errno != EINTR) {
      if (!would_block()) finish(std::string("control connection lost: ") + std::strerror(errno));
      return;
    }
  }
}

std::optional<Frame> Link::take() {
  if (in_.size() - taken_ < kHeaderBytes) return std::nullopt;
  const char* header = in_.data() + taken_;
  const std::uint32_t length = read_u32(header);
  const std::uint32_t kind = read_u32(header + 4);
  if (length > kLargestBody || !is_known(kind)) {
    in_.clear();
    taken_ = 0;
    finish("control connection sent what no rank sends");
    return std::nullopt;
  }
  if (in_.size() - taken_ - kHeaderBytes < length) return std::nullopt;
  Frame frame{static_cast<FrameKind>(kind), in_.substr(taken_ + kHeaderBytes, length)};
  taken_ += kHeaderBytes + length;
  return frame;
}

void Link::send(FrameKind kind, std::string_view body) {
  assert(body.size() <= kLargestBody);
  if (!is_open() || mute_ || out_.size() > kMostUnsent) return;
  append_u32(out_, static_cast<std::uint32_t>(body.size()));
  append_u32(out_, static_cast<std::uint32_t>(kind));
  out_ += body;
  flush();
}

void Link::flush() {
  while (sending()) {
    const ssize_t sent = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      out_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno != EINTR) {
      if (would_block()) return;
      mute_ = true;  // read() finds out why
      out_.clear();
    }
  }
}

}  // namespace tarpon::mesh
