// Finds the rank that the source address of a datagram belongs to.
#pragma once

#include <netinet/in.h>

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/port.h"
#include "transport/ports/udp_flows.h"

namespace tarpon {

/// Immutable map (IPv4 address, port) -> rank; open addressing at most half full. The last answer
/// is kept, because trains come in runs. One thread at a time.
class AddressTable {
 public:
  /// `peers`: addresses by rank; `others`: further addresses of these ranks. If two ranks have the
  /// same address, the lower rank wins.
  explicit AddressTable(std::span<const sockaddr_in> peers, std::span<const FlowSource> others = {})
      : slots_(std::bit_ceil((peers.size() + others.size()) * 2 + 2)) {
    for (std::size_t rank = 0; rank < peers.size(); ++rank) {
      add(peers[rank], static_cast<Rank>(rank));
    }
    for (const FlowSource& other : others) add(other.address, other.rank);
  }

  /// The rank of `address`; kUnknownRank when it belongs to no rank.
  Rank rank_of(const sockaddr_in& address) {
    const std::uint64_t key = key_of(address);
    if (key != last_.key) last_ = {key, slots_[find(key)].rank};
    return last_.rank;
  }

 private:
  struct Slot {
    std::uint64_t key = 0;  // 0: free; a real key has the bit above address and port set
    Rank rank = kUnknownRank;
  };

  static std::uint64_t key_of(const sockaddr_in& address) {
    return std::uint64_t{1} << 48 | std::uint64_t{address.sin_addr.s_addr} << 16 | address.sin_port;
  }

  void add(const sockaddr_in& address, Rank rank) {
    const std::uint64_t key = key_of(address);
    Slot& slot = slots_[find(key)];
    if (slot.key != key || rank < slot.rank) slot = {key, rank};
  }

  // Where `key` is, or the free slot where it would be.
  std::size_t find(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = static_cast<std::size_t>(key * 0x9e3779b97f4a7c15u >> 32) & mask;
    while (slots_[at].key != 0 && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  std::vector<Slot> slots_;
  Slot last_;
};

}  // namespace tarpon
