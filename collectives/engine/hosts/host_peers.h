// What the other ranks of a host say about one call: that they have begun it, as this rank did or
// otherwise, or have given it up.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/engine/call/signature.h"
#include "collectives/engine/hosts/host_line.h"
#include "transport/time.h"

namespace tarpon::hosts {

class HostPeers {
 public:
  /// `self`: this local rank, of `ranks`. `signature`: of the call here. `assignment`: of the call;
  /// outlives the object. REQUIRES: it has a line before all functions but begun_at().
  HostPeers(std::uint32_t self, std::uint32_t ranks, const SignatureBytes& signature,
            const Assignment& assignment)
      : self_(self),
        ranks_(ranks),
        signature_(signature),
        assignment_(assignment),
        begun_at_(ranks, kNever) {}

  /// Calls news(local rank, told, alike) once for each rank that has begun, and once for each that
  /// has given the call up. `alike`: it began the same call.
  template <typename News>
  void look(News news, Time now);
  /// Whether look() would call news().
  bool has_news() const;

  /// Whether all ranks have begun the call, and none has given it up: what their positions say is
  /// in the memory then. Look at the positions first.
  /// Ranks `without` (bit r: local rank r) do not count.
  bool all_hold(std::uint64_t without = 0) const;
  /// Whether a rank is so far ahead that it no longer tells of the call.
  bool is_overtaken() const;
  /// The local ranks that have ended it without a result.
  std::uint64_t ended() const;
  /// The local ranks that have not begun it. Bit r: local rank r.
  std::uint64_t lacking() const;
  /// When this rank saw that `rank` had begun; kNever: it did not.
  Time begun_at(std::uint32_t rank) const { return begun_at_[rank]; }

 private:
  bool is_new(std::uint32_t rank, CallState state) const {
    if (state == CallState::given_up) return (quit_ >> rank & 1) == 0;
    return state == CallState::begun && ((heard_ | odd_) >> rank & 1) == 0;
  }

  const std::uint32_t self_;
  const std::uint32_t ranks_;
  const SignatureBytes signature_;
  const Assignment& assignment_;
  std::vector<Time> begun_at_;  // by local rank
  // Local ranks, bit r: rank r, that have begun the same call, or another one, or given it up.
  std::uint64_t heard_ = 0;
  std::uint64_t odd_ = 0;
  std::uint64_t quit_ = 0;
};

template <typename News>
void HostPeers::look(News news, Time now) {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank == self_) continue;
    const HostLine::Told told = assignment_.line->told(rank, assignment_.number);
    if (!is_new(rank, told.state)) continue;
    const bool alike = told.signature == signature_;
    const std::uint64_t mask = std::uint64_t{1} << rank;
    if (told.state == CallState::given_up) {
      quit_ |= mask;
    } else {
      begun_at_[rank] = now;
      (alike ? heard_ : odd_) |= mask;
    }
    if (!news(rank, told, alike)) return;
  }
}

}  // namespace tarpon::hosts
