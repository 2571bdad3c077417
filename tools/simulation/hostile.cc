#include "tools/simulation/hostile.h"

#include <cstring>

#include "transport/integrity.h"

namespace tarpon {
namespace {

// Operations. Few enough that the 16 bits of the true `closed_below` still mean the same; lies.cc
// goes further.
constexpr std::uint64_t kAhead = 1000;

bool one_of_two(Random& random) {
  return random.chance(0.5);
}

/// Makes a header that no rank of any job sends.
void lie_of_format(tarpon_header& header, Random& random) {
  const auto other = static_cast<std::uint8_t>(1 + random.below(200));
  switch (random.below(5)) {
    case 0:
      header.magic = static_cast<std::uint16_t>(header.magic ^ other);
      break;
    case 1:
      header.version = static_cast<std::uint8_t>(header.version ^ other);
      break;
    case 2:
      header.type = one_of_two(random) ? std::uint8_t{0}
                                       : static_cast<std::uint8_t>(TARPON_TYPE_END - 1 + other);
      break;
    case 3:
      header.flags |= static_cast<std::uint8_t>(one_of_two(random) ? 0x40 : 0x80);
      break;
    default:
      header.length = static_cast<std::uint16_t>(header.length + other);
      break;
  }
}

/// Makes a header that others send, in other places or at other times.
void lie_of_origin(tarpon_header& header, Rank to, Rank ranks, Random& random) {
  const auto other = static_cast<std::uint16_t>(1 + random.below(200));
  switch (random.below(4)) {
    case 0:
      header.job += other;
      break;
    case 1:
      header.sender = one_of_two(random) ? to : static_cast<std::uint16_t>(ranks + other);
      break;
    case 2:
      header.communicator = other;
      break;
    default:
      header.incarnation = static_cast<std::uint8_t>(other);
      break;
  }
}

/// Names a slot, stage or operation that this job does not have now, or cuts the payload.
void lie_of_place(tarpon_header& header, std::vector<std::byte>& payload, Random& random) {
  const bool ahead = one_of_two(random);
  if (!ahead && header.type == TARPON_DATA) {
    if (payload.empty() || one_of_two(random)) {
      header.slot = ~static_cast<std::uint32_t>(random.below(1000));
    } else {
      payload.resize(random.below(payload.size()));
      header.length = static_cast<std::uint16_t>(payload.size());
    }
  } else if (!ahead && (header.type == TARPON_CREDIT || header.type == TARPON_REPAIR)) {
    header.stage = TARPON_MAX_STAGES - 1;
  } else {
    header.operation += static_cast<std::uint32_t>(kAhead + random.below(20 * kAhead));
  }
}

}  // namespace

void Hostile::forge_refused(Rank to) {
  const std::uint64_t lie = random_.below(11);
  if (lie < 4)
    lie_of_place(forged_.header, forged_.payload, random_);
  else if (lie < 7)
    lie_of_origin(forged_.header, to, ranks_, random_);
  else if (lie < 10)
    lie_of_format(forged_.header, random_);
  forged_.header.check = packet_check(forged_.header, forged_.payload) ^ (lie == 10 ? 1u : 0u);
}

/// Returns false if the packet has no twin of this group.
bool Hostile::forge(Rank to) {
  switch (group_) {
    case LieGroup::refused:
      forge_refused(to);
      return true;
    case LieGroup::numbering:
      forge_numbers(forged_, random_);
      break;
    case LieGroup::control:
      forge_control(forged_, ranks_, random_);
      break;
    case LieGroup::data:
      if (!forge_early_data(forged_, random_)) return false;
      break;
  }
  forged_.header.length = static_cast<std::uint16_t>(forged_.payload.size());
  forged_.header.check = packet_check(forged_.header, forged_.payload);
  return true;
}

std::span<const std::byte> Hostile::twin(Rank to, std::span<const std::byte> packet) {
  if (!random_.chance(share_)) return {};
  std::memcpy(&forged_.header, packet.data(), sizeof forged_.header);
  forged_.payload.assign(packet.begin() + sizeof forged_.header, packet.end());
  if (!forge(to)) return {};
  bytes_.resize(sizeof forged_.header + forged_.payload.size());
  std::memcpy(bytes_.data(), &forged_.header, sizeof forged_.header);
  if (!forged_.payload.empty()) {
    std::memcpy(bytes_.data() + sizeof forged_.header, forged_.payload.data(),
                forged_.payload.size());
  }
  return bytes_;
}

}  // namespace tarpon
