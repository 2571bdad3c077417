// The frames of a rendezvous. On the wire, little-endian: u32 length of the body, u32 kind, u32
// sequence, u32 milliseconds that the sender still waits (0xffffffff: for ever), body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tarpon::rendezvous {

inline constexpr std::size_t kFrameHeaderBytes = 16;

/// Longest bodies: of ranks that have joined, and of processes that have yet to prove that they are
/// ranks.
inline constexpr std::uint32_t kLargestBody = 16u << 20;
inline constexpr std::uint32_t kLargestHello = 64u << 10;

enum class FrameKind : std::uint32_t {
  hello = 1,
  verdict = 2,
  all_gather = 3,
  gather = 4,
  broadcast = 5,
  failure = 6,  // the sender gives the exchange up; body as in a verdict
};

struct Frame {
  FrameKind kind = FrameKind::hello;
  std::uint32_t sequence = 0;  // number of the exchange, counted alike on all ranks
  std::uint32_t wait_ms = UINT32_MAX;
  std::string body;
};

/// `frame` as bytes, of which no copy stays anywhere. REQUIRES: a body of at most kLargestBody.
std::string encode(const Frame& frame);

/// Appends a little-endian u32 to `bytes`, and reads one at `at`. REQUIRES: 4 bytes there.
void append_u32(std::string& bytes, std::uint32_t value);
std::uint32_t read_u32(const char* at);

}  // namespace tarpon::rendezvous
