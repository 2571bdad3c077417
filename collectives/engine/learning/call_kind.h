// The properties by which calls are alike. Bounds are learnt by kind: size class (sizes within a
// factor of two), coded or not, over hosts or not, how many calls the rank had open, and the
// collective.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "collectives/types.h"

namespace tarpon {

struct CallKind {
  std::uint64_t bytes = 0;  // of the bucket
  bool coded = false;
  std::uint32_t open = 1;   // calls that this rank had open when the call began, itself included
  bool over_hosts = false;  // through the memory of hosts first
  Collective collective = Collective::allreduce;

  /// Whether a gather follows the scatter. The other bounded collectives have one stage.
  bool gathers() const { return collective == Collective::allreduce; }
};

inline constexpr std::uint32_t kMaxOpen = 3;  // as many calls open or more are one kind

/// Equal for calls of one kind.
using CallKindKey = std::tuple<std::size_t, bool, std::uint32_t, bool, Collective>;

inline std::size_t size_class(std::uint64_t bytes) {
  return static_cast<std::size_t>(std::bit_width(std::max<std::uint64_t>(bytes, 1)) - 1);
}

inline CallKindKey key_of(const CallKind& kind) {
  return {size_class(kind.bytes), kind.coded, std::clamp<std::uint32_t>(kind.open, 1, kMaxOpen),
          kind.over_hosts, kind.collective};
}

/// Bytes to which the time of a call of `bytes` is proportional: small calls all take the same
/// time.
inline double scaled(std::uint64_t bytes) {
  constexpr std::uint64_t kLeastScaled = 64 << 10;
  return static_cast<double>(std::max(bytes, kLeastScaled));
}

}  // namespace tarpon
