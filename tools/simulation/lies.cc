// Lies in packets that pass every check which knows no secret.
#include <cstring>
#include <iterator>

#include "tools/simulation/hostile.h"

namespace tarpon {
namespace {

constexpr std::uint32_t kSomeGrant = 1u << 30;  // beyond every message

template <typename T>
void set_payload(ForgedPacket& packet, const T& content) {
  packet.payload.resize(sizeof content);
  std::memcpy(packet.payload.data(), &content, sizeof content);
}

/// Turns the packet into a control packet of `type` without payload, of the same operation and
/// stage.
void make_control(ForgedPacket& packet, tarpon_type type) {
  tarpon_header& header = packet.header;
  if (header.type == TARPON_DATA) header.stage = static_cast<std::uint8_t>(tarpon_stage(&header));
  header.type = static_cast<std::uint8_t>(type);
  header.flags &= TARPON_INTEGRITY_MASK;
  header.slot = 0;
  header.contributors = 0;
  packet.payload.clear();
}

void forge_ready(ForgedPacket& packet, Random& random) {
  tarpon_ready ready{};
  const bool knows = packet.header.type == TARPON_READY && packet.payload.size() == sizeof ready;
  if (knows) std::memcpy(&ready, packet.payload.data(), sizeof ready);
  make_control(packet, TARPON_READY);
  const bool other = !knows || random.chance(0.5);
  if (other) ready.signature[random.below(TARPON_SIGNATURE_BYTES)] ^= 1;
  for (auto& grant : ready.grant) {
    grant = random.chance(0.5) ? kSomeGrant : TARPON_CREDIT_COMPLETE - 1;
  }
  // The slot says how often READY was repeated; 0 asks for no answer.
  packet.header.slot = random.chance(0.5) ? 0 : static_cast<std::uint32_t>(random.next());
  set_payload(packet, ready);
}

void forge_repair(ForgedPacket& packet, Random& random) {
  constexpr tarpon_range kRanges[] = {
      {0, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x80000000, 0x80000000}, {0, 1}, {1u << 20, 1}};
  make_control(packet, TARPON_REPAIR);
  packet.header.slot = random.chance(0.5) ? kSomeGrant : 0;
  std::array<tarpon_range, 3> ranges;
  for (tarpon_range& range : ranges) range = kRanges[random.below(std::size(kRanges))];
  set_payload(packet, ranges);
}

std::uint64_t some_ranks(Rank ranks, Random& random) {
  switch (random.below(4)) {
    case 0:
      return 0;
    case 1:
      return ~0ull;  // also ranks that the job does not have
    case 2:
      return 1ull << random.below(ranks);
    default:
      return random.next();
  }
}

}  // namespace

void forge_numbers(ForgedPacket& packet, Random& random) {
  // Jumps within the window are believed; forge_control() makes those.
  constexpr std::uint16_t kJumps[] = {64, 0x4000, 0x7fff, 0x8000, 0x8001, 0xc000, 0xffff};
  constexpr std::uint32_t kFar[] = {1u << 16, 1u << 30, 0x7fffffff, 0x80000000, 0xc0000000};
  tarpon_header& header = packet.header;
  // CLOSED and ABORT may prove a jump: only a forger who reads the wire can make those.
  const bool proves = header.type == TARPON_CLOSED || header.type == TARPON_ABORT;
  if (random.chance(0.3) || proves) make_control(packet, TARPON_HEARTBEAT);
  if (random.chance(0.5)) {
    const std::uint16_t jump = kJumps[random.below(std::size(kJumps))];
    header.closed_below = static_cast<std::uint16_t>(header.closed_below + jump);
  } else {
    // `closed_below` keeps its low 16 bits, so it means numbers near the operation.
    header.operation += kFar[random.below(std::size(kFar))];
  }
}

void forge_control(ForgedPacket& packet, Rank ranks, Random& random) {
  tarpon_header& header = packet.header;
  switch (random.below(7)) {
    case 0:
      make_control(packet, TARPON_ABORT);
      header.slot = static_cast<std::uint32_t>(random.below(TARPON_ABORT_EXPIRED + 2));
      header.contributors = some_ranks(ranks, random);
      break;
    case 1:
      forge_ready(packet, random);
      break;
    case 2:
      make_control(packet, TARPON_CREDIT);
      header.slot = kSomeGrant + static_cast<std::uint32_t>(random.below(kSomeGrant));
      break;
    case 3:
      make_control(packet, TARPON_CREDIT);
      header.slot = TARPON_CREDIT_COMPLETE;
      break;
    case 4:
      forge_repair(packet, random);
      break;
    case 5:
      make_control(packet, TARPON_CLOSED);
      header.contributors = some_ranks(ranks, random);
      header.closed_below = static_cast<std::uint16_t>(header.operation + 1);
      break;
    default:
      make_control(packet, TARPON_HEARTBEAT);
      header.closed_below = static_cast<std::uint16_t>(header.operation + 1 + random.below(8));
      break;
  }
}

bool forge_early_data(ForgedPacket& packet, Random& random) {
  tarpon_header& header = packet.header;
  if (header.type != TARPON_DATA || packet.payload.empty()) return false;
  if (random.chance(0.5)) {
    header.operation += 1 + static_cast<std::uint32_t>(random.below(7));
  } else {
    header.slot += 1 + static_cast<std::uint32_t>(random.below(8));
  }
  for (std::byte& one : packet.payload) one ^= std::byte{0x40};
  return true;
}

}  // namespace tarpon
