#include "transport/ports/sealed_port.h"

#include <cstring>
#include <utility>

#include "bpf/wire.h"
#include "transport/seal/packet_key.h"

namespace tarpon {
namespace {

constexpr unsigned kNumberBits = 31;  // of tarpon_header::check
constexpr std::byte kKeyed{TARPON_INTEGRITY_KEYED << TARPON_INTEGRITY_SHIFT};  // both bits
static_assert(kKeyed == std::byte{TARPON_INTEGRITY_MASK});
constexpr std::uint32_t kToAll = std::uint32_t{1} << kNumberBits;

seal::Nonce nonce_of(std::uint64_t number) {
  seal::Nonce nonce{};
  std::memcpy(nonce.data(), &number, sizeof number);
  return nonce;
}

std::uint32_t check_of(const std::byte* header) {
  std::uint32_t check = 0;
  std::memcpy(&check, header + offsetof(tarpon_header, check), sizeof check);
  return check;
}

bool is_keyed(const std::byte* header) {
  return (header[offsetof(tarpon_header, flags)] & kKeyed) == kKeyed;
}

}  // namespace

SealedPort::SealedPort(std::unique_ptr<Port> inner, const SealOptions& options,
                       std::unique_ptr<seal::CipherLibrary> library)
    : ForwardingPort(std::move(inner)),
      options_(options),
      capabilities_(ForwardingPort::capabilities()),
      library_(std::move(library)),
      outgoing_(options.ranks + 1),
      incoming_(std::size_t{options.ranks} * 2) {
  capabilities_.max_payload -= TARPON_TAG_BYTES;
  capabilities_.checksums = true;
  if (options_.encrypts) capabilities_.gathers = false;
}

seal::GcmKey& SealedPort::key(Keys& keys, Rank sender, Rank receiver, std::uint64_t number) {
  const std::uint64_t generation = number >> options_.packets_of_key_shift;
  Keys::Slot& slot = keys.slots[generation % keys.slots.size()];
  if (slot.key == nullptr || slot.generation != generation) {
    slot.key = library_->key(seal::packet_key(
        options_.key, {.sender = sender, .receiver = receiver, .generation = generation}));
    slot.generation = generation;
  }
  return *slot.key;
}

void SealedPort::seal(TxPacket& packet) {
  const bool to_all = packet.peer == kAllRanks;
  Outgoing& direction = outgoing_[to_all ? options_.ranks : packet.peer];
  const std::uint64_t number = direction.next++;
  const auto check = static_cast<std::uint32_t>(number & (kToAll - 1)) | (to_all ? kToAll : 0);
  std::memcpy(packet.header + offsetof(tarpon_header, check), &check, sizeof check);
  packet.header[offsetof(tarpon_header, flags)] |= kKeyed;
  seal::GcmKey& key = this->key(direction.keys, options_.rank, packet.peer, number);
  const std::span<const std::byte> header(packet.header, TARPON_HEADER_BYTES);
  if (packet.payload != packet.room) {
    const seal::Tag tag =
        key.authenticate(nonce_of(number), header, {packet.payload, packet.length});
    packet.tail = tag.size();
    std::memcpy(packet.room + capabilities_.max_payload, tag.data(), tag.size());
    return;
  }
  const std::span<std::byte> payload(packet.room, packet.length);
  const seal::Tag tag = options_.encrypts ? key.encrypt(nonce_of(number), header, payload)
                                          : key.authenticate(nonce_of(number), header, payload);
  std::memcpy(packet.room + packet.length, tag.data(), tag.size());
  packet.tail = 0;
  packet.length += static_cast<std::uint32_t>(tag.size());
}

void SealedPort::transmit(std::span<TxPacket> packets) {
  for (TxPacket& packet : packets) {
    const bool known = packet.peer < options_.ranks || packet.peer == kAllRanks;
    if (known && packet.length <= capabilities_.max_payload) {
      seal(packet);
    } else {
      packet.peer = kUnknownRank;  // nothing leaves without a tag: the port below counts it
    }
  }
  ForwardingPort::transmit(packets);
}

/// Whether `packet` has a right tag and is new. Cuts the tag off.
bool SealedPort::open(RxPacket& packet) {
  if (packet.source >= options_.ranks || packet.source == options_.rank ||
      packet.length < TARPON_HEADER_BYTES + TARPON_TAG_BYTES || !is_keyed(packet.data)) {
    ++forged_;
    return false;
  }
  const std::uint32_t check = check_of(packet.data);
  const bool to_all = (check & kToAll) != 0;
  Incoming& direction = incoming_[packet.source + (to_all ? options_.ranks : 0)];
  const std::uint64_t number = direction.window.number(check & (kToAll - 1), kNumberBits);
  if (!direction.window.is_fresh(number)) {
    ++replayed_;
    return false;
  }
  const unsigned shift = options_.packets_of_key_shift;
  if (number >> shift > (direction.window.highest() >> shift) + 1) {
    ++forged_;  // so many in a row are not lost
    return false;
  }
  packet.length -= TARPON_TAG_BYTES;
  seal::Tag tag;
  std::memcpy(tag.data(), packet.data + packet.length, tag.size());
  seal::GcmKey& key =
      this->key(direction.keys, packet.source, to_all ? kAllRanks : options_.rank, number);
  const std::span<const std::byte> header(packet.data, TARPON_HEADER_BYTES);
  const auto payload = std::span(packet.data, packet.length).subspan(TARPON_HEADER_BYTES);
  // The port below lends its receive buffer to this object alone, until the next receive().
  const std::span<std::byte> in_place(const_cast<std::byte*>(payload.data()), payload.size());
  const bool right = options_.encrypts ? key.decrypt(nonce_of(number), header, in_place, tag)
                                       : key.verify(nonce_of(number), header, payload, tag);
  if (!right) {
    ++forged_;
    return false;
  }
  direction.window.note(number);
  return true;
}

std::span<const RxPacket> SealedPort::receive(Time now) {
  batch_.clear();
  for (RxPacket packet : ForwardingPort::receive(now)) {
    if (open(packet)) batch_.push_back(packet);
  }
  return batch_;
}

PortStatistics SealedPort::statistics() const {
  PortStatistics result = ForwardingPort::statistics();
  result.rx_forged = forged_;
  result.rx_replayed = replayed_;
  return result;
}

}  // namespace tarpon
