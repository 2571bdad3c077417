#include "collectives/rendezvous/control_frame.h"

#include <cassert>

namespace tarpon::rendezvous {

void append_u32(std::string& bytes, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
}

std::uint32_t read_u32(const char* at) {
  std::uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(at[i]);
  return value;
}

std::string encode(const Frame& frame) {
  assert(frame.body.size() <= kLargestBody);
  std::string bytes;
  bytes.reserve(kFrameHeaderBytes + frame.body.size());
  append_u32(bytes, static_cast<std::uint32_t>(frame.body.size()));
  append_u32(bytes, static_cast<std::uint32_t>(frame.kind));
  append_u32(bytes, frame.sequence);
  append_u32(bytes, frame.wait_ms);
  bytes += frame.body;
  return bytes;
}

}  // namespace tarpon::rendezvous
