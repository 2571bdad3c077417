// Who is evicted: rules without thread, clock or socket.
//
// A rank whose calls are held back wishes it of those that hold them back, unless these are more
// than half of the live ranks: then it is the one that is cut off. The lowest live rank that is not
// meant itself decides, at once, and tells all; whoever hears of an eviction for the first time
// passes it on, so that it reaches everybody though the decider dies. No eviction is revoked, or
// refused: should two ranks evict each other, both are out everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/mesh/link.h"
#include "transport/port.h"

namespace tarpon::mesh {

class Eviction {
 public:
  struct News {
    Rank rank = 0;  // may be this one
    Rank decided_by = 0;
  };

  Eviction(Rank rank, std::uint32_t world_size);

  /// This rank's calls are held back by `ranks` (bit r: rank r).
  void wish(std::uint64_t ranks);
  /// Another rank's wish, or what somebody has decided. Nonsense is ignored.
  void take_wish(Rank from, std::string_view body);
  void take_eviction(std::string_view body);
  /// `rank` is dead, or has left.
  void gone(Rank rank) { live_ &= ~(1ull << rank); }

  /// Evicted so far; this rank as well, if it is.
  std::uint64_t evicted() const { return evicted_; }

  /// Those that are new, once.
  std::vector<News> take_news() { return std::exchange(news_, {}); }
  std::vector<std::pair<Rank, Frame>> take_outbox() { return std::exchange(outbox_, {}); }

 private:
  std::uint64_t evictable(std::uint64_t ranks) const;
  void evict(std::uint64_t ranks, Rank decided_by);

  const Rank rank_;
  std::uint64_t live_;        // not gone, and not evicted
  const std::uint64_t told_;  // all: news for those that are gone goes nowhere
  std::uint64_t evicted_ = 0;
  std::vector<News> news_;
  std::vector<std::pair<Rank, Frame>> outbox_;
};

}  // namespace tarpon::mesh
