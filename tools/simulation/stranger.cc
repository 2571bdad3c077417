#include "tools/simulation/stranger.h"

#include <cstring>

#include "bpf/wire.h"

namespace tarpon {
namespace {

constexpr std::size_t kKept = 128;

}  // namespace

const StrangerPacket* Stranger::read(Rank from, Rank to, std::span<const std::byte> packet) {
  const StrangerPacket* result = nullptr;
  if (random_.chance(share_)) {
    sent_.from = from;
    sent_.to = to;
    sent_.bytes.assign(packet.begin(), packet.end());
    const auto act = static_cast<StrangerAct>(random_.below(kStrangerActs));
    if (this->act(act, sent_)) result = &sent_;
  }
  keep(from, to, packet);
  return result;
}

const StrangerPacket* Stranger::recall() {
  return kept_.empty() ? nullptr : &kept_[random_.below(kept_.size())];
}

/// Every packet of the past stays with the same probability.
void Stranger::keep(Rank from, Rank to, std::span<const std::byte> packet) {
  std::size_t place = random_.below(++read_);
  if (kept_.size() < kKept) {
    place = kept_.size();
    kept_.emplace_back();
  }
  if (place >= kKept) return;
  kept_[place].from = from;
  kept_[place].to = to;
  kept_[place].bytes.assign(packet.begin(), packet.end());
}

Rank Stranger::other_than(Rank rank) {
  return static_cast<Rank>((rank + 1 + random_.below(ranks_ - 1u)) % ranks_);
}

bool Stranger::act(StrangerAct act, StrangerPacket& packet) {
  std::vector<std::byte>& bytes = packet.bytes;
  const StrangerPacket* const earlier = recall();
  switch (act) {
    case StrangerAct::again:
    case StrangerAct::kinds:
      return true;
    case StrangerAct::old:
      if (earlier == nullptr) return false;
      packet = *earlier;
      return true;
    case StrangerAct::reflect:
      std::swap(packet.from, packet.to);
      return true;
    case StrangerAct::redirect:
      packet.to = other_than(packet.to);
      return true;
    case StrangerAct::rename:
      packet.from = other_than(packet.from);
      return true;
    case StrangerAct::truncate: {
      const bool tag = random_.chance(0.3) && bytes.size() > TARPON_TAG_BYTES;
      bytes.resize(tag ? bytes.size() - TARPON_TAG_BYTES : random_.below(bytes.size()));
      return true;
    }
    case StrangerAct::extend:
      bytes.resize(bytes.size() + (random_.chance(0.3) ? TARPON_TAG_BYTES : 1 + random_.below(8)),
                   std::byte{0});
      return true;
    case StrangerAct::alter:
      bytes[random_.below(bytes.size())] ^= std::byte{1} << random_.below(8);
      return true;
    case StrangerAct::header:
      return change_header(bytes);
    case StrangerAct::number: {
      tarpon_header header;
      std::memcpy(&header, bytes.data(), sizeof header);
      const std::uint64_t far = random_.below(3);
      header.check += static_cast<std::uint32_t>(far == 0   ? 1 + random_.below(64)
                                                 : far == 1 ? 1 + random_.below(100'000)
                                                            : 1u << 22);
      std::memcpy(bytes.data(), &header, sizeof header);
      return true;
    }
    case StrangerAct::splice:
      if (earlier == nullptr || bytes.size() != earlier->bytes.size()) return false;
      if (std::memcmp(bytes.data() + sizeof(tarpon_header),
                      earlier->bytes.data() + sizeof(tarpon_header),
                      bytes.size() - sizeof(tarpon_header)) == 0) {
        return false;
      }
      std::memcpy(bytes.data() + sizeof(tarpon_header),
                  earlier->bytes.data() + sizeof(tarpon_header),
                  bytes.size() - sizeof(tarpon_header));
      return true;
  }
  return false;
}

/// Makes the header say something else that a rank could say.
bool Stranger::change_header(std::vector<std::byte>& bytes) {
  tarpon_header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto other = static_cast<std::uint8_t>(1 + random_.below(7));
  switch (random_.below(8)) {
    case 0:
      header.communicator ^= other;
      break;
    case 1:
      header.type = static_cast<std::uint8_t>(1 + (header.type + other) % (TARPON_TYPE_END - 1));
      break;
    case 2:
      header.tag ^= other;
      break;
    case 3:
      header.operation += other;
      break;
    case 4:
      header.slot ^= other;
      break;
    case 5:
      header.closed_below = static_cast<std::uint16_t>(header.closed_below + other);
      break;
    case 6:
      header.job ^= other;
      break;
    default:
      header.sender = static_cast<std::uint16_t>(header.sender ^ other);
      break;
  }
  const bool changed = std::memcmp(bytes.data(), &header, sizeof header) != 0;
  std::memcpy(bytes.data(), &header, sizeof header);
  return changed;
}

}  // namespace tarpon
