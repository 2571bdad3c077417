#include "transport/seal/packet_key.h"

#include <string>

namespace tarpon::seal {
namespace {

void append(std::string& info, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) info.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

Key packet_key(const JobKey& job, const Direction& direction) {
  std::string info = "tarpon packet 1";
  append(info, direction.sender, 2);
  append(info, direction.receiver, 2);
  append(info, direction.generation, 8);
  Key key;
  derive_key(job, info, key);
  return key;
}

}  // namespace tarpon::seal
