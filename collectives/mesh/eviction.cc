// Who is evicted.
#include "collectives/mesh/eviction.h"

#include <bit>

#include "collectives/rendezvous/connection.h"

namespace tarpon::mesh {
namespace {

std::uint64_t bit(Rank rank) {
  return 1ull << rank;
}

void append_mask(std::string& bytes, std::uint64_t mask) {
  rendezvous::append_u32(bytes, static_cast<std::uint32_t>(mask));
  rendezvous::append_u32(bytes, static_cast<std::uint32_t>(mask >> 32));
}

/// REQUIRES: 8 bytes from `at` on.
std::uint64_t read_mask(const char* at) {
  return rendezvous::read_u32(at) | std::uint64_t{rendezvous::read_u32(at + 4)} << 32;
}

constexpr std::size_t kWishBytes = 8;
constexpr std::size_t kEvictionBytes = 12;

}  // namespace

Eviction::Eviction(Rank rank, std::uint32_t world_size)
    : rank_(rank), live_(world_size >= 64 ? ~0ull : (1ull << world_size) - 1), told_(live_) {}

/// Of `ranks` those that may be evicted; 0: nobody is.
std::uint64_t Eviction::evictable(std::uint64_t ranks) const {
  ranks &= live_ & ~bit(rank_);
  const bool out = (live_ & bit(rank_)) == 0;
  return out || 2 * std::popcount(ranks) > std::popcount(live_) ? 0 : ranks;
}

void Eviction::wish(std::uint64_t ranks) {
  ranks = evictable(ranks);
  if (ranks == 0) return;
  const auto decider = static_cast<Rank>(std::countr_zero(live_ & ~ranks));
  if (decider == rank_) return evict(ranks, rank_);
  std::string body;
  append_mask(body, ranks);
  outbox_.emplace_back(decider, Frame{FrameKind::evict_wish, std::move(body)});
}

/// Whoever wishes holds this rank for the decider.
void Eviction::take_wish(Rank from, std::string_view body) {
  if (body.size() != kWishBytes || (live_ & bit(from)) == 0) return;
  evict(evictable(read_mask(body.data())), rank_);
}

void Eviction::take_eviction(std::string_view body) {
  if (body.size() != kEvictionBytes) return;
  evict(read_mask(body.data() + 4), static_cast<Rank>(rendezvous::read_u32(body.data())));
}

void Eviction::evict(std::uint64_t ranks, Rank decided_by) {
  const std::uint64_t fresh = ranks & live_;
  if (fresh == 0) return;
  live_ &= ~fresh;
  evicted_ |= fresh;
  std::string body;
  rendezvous::append_u32(body, decided_by);
  append_mask(body, fresh);
  for (Rank peer = 0; peer < 64; ++peer) {
    if ((fresh & bit(peer)) != 0) news_.push_back({peer, decided_by});
    if (peer == rank_ || (told_ & bit(peer)) == 0) continue;
    outbox_.emplace_back(peer, Frame{FrameKind::evict, body});
  }
}

}  // namespace tarpon::mesh
